-- Takes the lock if it is free; else, if the claim waits, takes or refreshes a place in the queue.
local owner, ttl, lease, note = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]
local holder, left, wrong = holder_of(name)
if wrong then return redis.error_reply(wrong) end
local known = redis.call('HMGET', state, 'token', 'place', 'window', 'owner', 'note', 'since', 'row')
local stored = tonumber(known[1] or nil)

if holder == owner then
  redis.call('PEXPIRE', name, ttl)
  local token = known[1]
  if known[4] ~= owner then
    -- What we knew of this grant is lost: it gets a new token.
    token = whole(next_token(stored))
    redis.call('HSET', state, 'token', token, 'owner', owner, 'note', note, 'since', whole(now_ms))
  end
  remember(ttl, tonumber(token))
  return { 1, token, ttl }
end

local busy = redis.call('EXISTS', queue, grave) > 0
if busy and redis.call('EXISTS', grave) == 1 then return { -1 } end

local window = math.max(0, (tonumber(known[3] or 0) or 0) - now_ms)
-- After the clock was set back, a window must not last for longer than it was meant to.
window = math.min(window, grace)
if not holder and (window == 0 or barging) then
  local first = busy and head() or nil
  if not first or first == owner or barging then
    if busy then leave(owner) end
    return { 1, grant(owner, ttl, note, 0, stored), ttl }
  end
  serve(tonumber(known[7] or 0) or 0, stored)
  holder, left = holder_of(name)
  known = redis.call('HMGET', state, 'token', 'place', 'window', 'owner', 'note', 'since', 'row')
end

local place, ahead, again = '', -1, holder and left or window
if lease > 0 then
  place = redis.call('ZSCORE', queue, owner)
  if not place then
    place = whole(math.max(now_us, (tonumber(known[2] or 0) or 0) + 1))
    redis.call('ZADD', queue, place, owner)
    redis.call('HSET', state, 'place', place)
    if redis.call('PTTL', state) < memory then remember(0, tonumber(known[1] or nil)) end
  end
  redis.call('HSET', places, owner, whole(now_ms + lease) .. ' ' .. whole(lease) .. ' ' .. note)
  if redis.call('PTTL', queue) < lease then
    redis.call('PEXPIRE', queue, lease)
    redis.call('PEXPIRE', places, lease)
  end
  ahead = redis.call('ZRANK', queue, owner)
  -- The first looks when the lock can become free by itself; the others refresh their places.
  local refresh = math.max(1, math.floor(lease / 3))
  again = (ahead == 0 and again >= 0) and math.min(refresh, again + 1) or refresh
end
local ours = holder and known[4] == holder
local age = ours and math.max(0, now_ms - (tonumber(known[6] or 0) or 0)) or -1
return { 0, again, ahead, place, holder or '', left, ours and known[1] or '', ours and known[5] or '',
  age }
