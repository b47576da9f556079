-- Grants the lock if it is free and no waiter is before the claim. Otherwise, if the claim waits,
-- it joins the queue or refreshes its entry.
--
-- The same owner may send this again at any time: it gets the same grant with the same token, or
-- keeps its sequence in the queue. That makes a request whose response was lost repeatable.
--
-- Order of the checks, and the race that each decides:
-- 1. The owner holds the lock already. Before the tombstone: a grant that was handed off is
--    confirmed, whatever came before it.
-- 2. A tombstone: the claim was cancelled, and this request arrives late. It must not be granted,
--    since no client would release it.
-- 3. The lock is free, and no window for foreign clients is open: the first living waiter gets it,
--    which may be this claim. A lock whose lease ended is handed off by the next script that finds
--    it, this one.
-- 4. Busy: the claim joins the queue, or its entry is refreshed. A sequence never changes while the
--    entry lives, also if the clock is set back.
--
-- ARGV: owner, ttl, lease of a queue entry (0: the claim does not wait), holder info.
-- Returns { 1, token, ttl }, or { -1 } if the claim was cancelled, or
-- { 0, retry after, ahead, sequence, holder, ms left, token, info, age }.
local owner, ttl, lease, info = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local holder, left, wrong = holder_of(name)
if wrong then return redis.error_reply(wrong) end
local known = redis.call('HMGET', state, 'token', 'place', 'window', 'owner', 'note', 'since', 'row')
local last_token = tonumber(known[1] or nil)

if holder == owner then
  -- The response was lost, or the lock was handed off and the message was lost: the same grant.
  redis.call('PEXPIRE', name, ttl)
  local token = known[1]
  if known[4] ~= owner then
    -- The state of this grant is lost: it gets a new token.
    token = whole(next_token(last_token))
    redis.call('HSET', state, 'token', token, 'owner', owner, 'note', info, 'since', whole(now_ms))
  end
  remember(ttl, tonumber(token))
  return { 1, token, ttl }
end

-- Both keys at once: in the usual case there is neither a queue nor a tombstone, and one command is
-- enough.
local contended = redis.call('EXISTS', queue, tombstone) > 0
if contended and redis.call('EXISTS', tombstone) == 1 then return { -1 } end

local window = math.max(0, (tonumber(known[3] or 0) or 0) - now_ms)
-- After the clock was set back, a window must not last for longer than it was meant to.
window = math.min(window, grace)
if not holder and (window == 0 or barging) then
  local first = contended and first_waiter() or nil
  if not first or first == owner or barging then
    if contended then remove_entry(owner) end
    return { 1, grant(owner, ttl, info, 0, last_token), ttl }
  end
  -- Another waiter is first: the lease of the last holder ended, and no script has handed the lock
  -- off since. This one does, and its own claim waits.
  hand_off(tonumber(known[7] or 0) or 0, last_token)
  holder, left = holder_of(name)
  known = redis.call('HMGET', state, 'token', 'place', 'window', 'owner', 'note', 'since', 'row')
end

local sequence, ahead, retry_after = '', -1, holder and left or window
if lease > 0 then
  sequence = redis.call('ZSCORE', queue, owner)
  if not sequence then
    -- Above the last one also if the clock was set back: the order of waiters does not change.
    sequence = whole(math.max(now_us, (tonumber(known[2] or 0) or 0) + 1))
    redis.call('ZADD', queue, sequence, owner)
    redis.call('HSET', state, 'place', sequence)
    remember(0, tonumber(known[1] or nil))
  end
  redis.call('HSET', entries, owner, whole(now_ms + lease) .. ' ' .. whole(lease) .. ' ' .. info)
  if redis.call('PTTL', queue) < lease then
    redis.call('PEXPIRE', queue, lease)
    redis.call('PEXPIRE', entries, lease)
  end
  ahead = redis.call('ZRANK', queue, owner)
  -- The first waiter requests again when the lock can become free by itself; the others refresh
  -- their entries.
  local refresh = math.max(1, math.floor(lease / 3))
  retry_after = (ahead == 0 and retry_after >= 0) and math.min(refresh, retry_after + 1) or refresh
end
-- What the state says is about this holder, and not about an earlier one of tenure.
local by_tenure = holder and known[4] == holder
local age = by_tenure and math.max(0, now_ms - (tonumber(known[6] or 0) or 0)) or -1
return { 0, retry_after, ahead, sequence, holder or '', left,
  by_tenure and known[1] or '', by_tenure and known[5] or '', age }
