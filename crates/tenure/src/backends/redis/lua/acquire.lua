-- Grants the lock if the claim fits beside its holders and no waiter is before it. Otherwise, if
-- the claim waits, it joins the queue or refreshes its entry.
--
-- The same owner may send this again at any time: it gets the same grant with the same token, or
-- keeps its sequence in the queue. That makes a request whose response was lost repeatable.
--
-- Order of the checks, and the race that each decides:
-- 1. The owner holds the lock already, in whichever mode. Before the tombstone: a grant that was
--    handed off is confirmed, whatever came before it. A downgrade makes this grant shared, or does
--    nothing: one that arrives after the release must not create a holder.
-- 2. A tombstone: the claim was cancelled, and this request arrives late. It must not be granted,
--    since no client would release it.
-- 3. The key is held as the other kind, or the first waiter wants it as that: a lock or a
--    semaphore.
-- 4. No exclusive holder, and no window for foreign clients is open: the first living waiters get
--    it, among which this claim may be. A lock whose lease ended is handed off by the next script
--    that finds it, this one.
-- 5. Busy: the claim joins the queue, or its entry is refreshed. A sequence never changes while the
--    entry lives, also if the clock is set back.
--
-- ARGV: owner, ttl, lease of a queue entry (0: the claim does not wait), holder info. Any but a
-- plain exclusive claim adds its mode, and the token of the grant that it downgrades, or ''.
-- Returns { 1, token, ttl }, or { -1 } if the claim was cancelled, { -2 } or { -3 } if the grant to
-- downgrade is gone and the lock is free or held by others, { -4 } or { -5 } if the key is in use as
-- a lock or as a semaphore, or
-- { 0, retry after, ahead, sequence, holder, ms left, token, info, age, mode, count of holders }.
local owner, ttl, lease, info = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local mode, downgraded = ARGV[8] or 'x', ARGV[9] or ''
local holder, left, wrong = holder_of(name)
if wrong then return redis.error_reply(wrong) end
if is_marker(holder) then holder = drop_expired(holder) end
local known =
  redis.call('HMGET', state, 'token', 'place', 'window', 'owner', 'note', 'since', 'row', 'first')
last_token, row = tonumber(known[1] or nil), tonumber(known[7] or 0) or 0

-- Makes the exclusive grant shared, with its token, and lets the readers at the head in.
local function downgrade(token, since, note)
  local lasts = math.max(left, ttl)
  last_token = math.max(last_token or 0, tonumber(token) + range_size - 1)
  redis.call('HDEL', state, 'owner', 'note', 'since')
  redis.call('DEL', name)
  redis.call('HSET', state, 'token', whole(last_token))
  local last = whole(tonumber(token) + range_size - 1)
  local marker =
    add_holder(nil, owner, lasts, 's', token .. ' ' .. last .. ' ' .. since .. ' s\n' .. note)
  remember(lasts, last_token)
  hand_off(marker, '', 0)
  return { 1, token, ttl }
end

if holder == owner then
  local token = known[1] and own_token(known[1], known[8])
  local stated = known[4] == owner
  if downgraded ~= '' then
    if stated and token ~= downgraded then return { -3 } end
    return downgrade(downgraded, stated and known[6] or whole(now_ms), stated and known[5] or info)
  end
  -- The response was lost, or the lock was handed off and the message was lost: the same grant.
  redis.call('PEXPIRE', name, ttl)
  if not stated then
    -- The state of this grant is lost: it gets a new token.
    return { 1, grant_exclusive(owner, ttl, info, range_size), ttl }
  end
  remember(ttl, last_token)
  return { 1, token, ttl }
end

local last_ms = is_marker(holder) and tonumber(redis.call('ZSCORE', ends, owner) or nil)
if last_ms and last_ms >= now_ms then
  local token = grant_of(owner)
  if not token then return redis.error_reply('NOTALOCK the grant of a holder is lost') end
  if downgraded ~= '' and token ~= downgraded then return { -3 } end
  -- The response was lost, or this is a late exclusive request of before the downgrade.
  last_ms = math.max(last_ms, now_ms + ttl)
  -- A full server refuses to add as the first write, but not this one.
  redis.call('PEXPIRE', grants, ttl)
  redis.call('ZADD', ends, whole(last_ms), owner)
  settle_holders(holder)
  remember(ttl, last_token)
  return { 1, token, ttl }
end
if downgraded ~= '' then return { holder and -3 or -2 } end

-- Both keys at once: in the usual case there is neither a queue nor a tombstone, and one command is
-- enough.
local contended = redis.call('EXISTS', queue, tombstone) > 0
if contended and redis.call('EXISTS', tombstone) == 1 then return { -1 } end

local kind = string.sub(mode, 1, 1)
local function is_other_kind(used) return (used == 'p') ~= (kind == 'p') end
local used = kind
if holder then
  used = holder == MARKERS.p and 'p' or 'x'
elseif contended then
  local _, _, _, waits_for = first_waiter()
  used = string.sub(waits_for or mode, 1, 1)
end
if is_other_kind(used) then return { used == 'p' and -5 or -4 } end

-- The owner of the grant with the lowest token. To look for it means to read all grants, so that it
-- is remembered.
local function oldest_holder()
  local oldest = redis.call('HGET', grants, '~oldest')
  if oldest then return oldest end
  local lowest
  local all = redis.call('HGETALL', grants)
  for i = 1, #all, 2 do
    local token = tonumber(string.match(all[i + 1], '^(%d+) %d') or nil)
    if token and (not lowest or token < lowest) then oldest, lowest = all[i], token end
  end
  if oldest then redis.call('HSET', grants, '~oldest', oldest) end
  return oldest
end

local window = math.max(0, (tonumber(known[3] or 0) or 0) - now_ms)
-- After the clock was set back, a window must not last for longer than it was meant to.
window = math.min(window, grace)
local queued = contended and redis.call('ZSCORE', queue, owner) or nil
if is_marker(holder) or not holder and (window == 0 or barging) then
  if queued then
    -- What is handed off now counts with the numbers that the claim states now.
    local entry_left = entry_of(owner)
    if entry_left and entry_left > 0 then
      if lease > 0 then write_entry(owner, lease, mode, info) end
    else
      remove_entry(owner)
      queued = nil
    end
  end
  if contended and not barging then
    local token = hand_off(holder, owner, ttl)
    if token then return { 1, token, ttl } end
    holder = holder_of(name)
  end
  local before = contended and not barging and first_waiter()
  if not before and fits(holder, mode) then
    if queued then remove_entry(owner) end
    row = 0
    local token = grant(holder, owner, ttl, mode, info, range_size)
    return { 1, token, ttl }
  end
  holder, left = holder_of(name)
  known = redis.call('HMGET', state, 'token', 'place', 'window', 'owner', 'note', 'since', 'row',
    'first')
end

-- Who holds: the only one, or the oldest of several.
local shown, count, shown_mode, token, note, age = holder, holder and 1 or 0, 'x', '', '', -1
-- When the lock, or a part of it, can become free by itself.
local free_after = holder and left or window
if is_marker(holder) then
  local first = redis.call('ZRANGE', ends, 0, 0, 'WITHSCORES')[2]
  free_after = first and math.max(0, tonumber(first) - now_ms) or left
  count = redis.call('ZCARD', ends)
  local oldest = oldest_holder()
  -- Without one, foreign hands have deleted the grants, and not the lock.
  if oldest then
    local _, since
    shown, left = oldest, tonumber(redis.call('ZSCORE', ends, oldest) or now_ms) - now_ms
    token, _, since, shown_mode, note = grant_of(oldest)
    age = math.max(0, now_ms - tonumber(since))
  end
elseif holder and known[4] == holder then
  -- What the state says is about this holder, and not about an earlier one of tenure.
  token, note = own_token(known[1], known[8]), known[5]
  age = math.max(0, now_ms - (tonumber(known[6] or 0) or 0))
end

local sequence, ahead, retry_after = '', -1, free_after
if lease > 0 then
  sequence = redis.call('ZSCORE', queue, owner)
  if not sequence then
    -- Above the last one also if the clock was set back: the order of waiters does not change.
    sequence = whole(math.max(now_us, (tonumber(known[2] or 0) or 0) + 1))
    redis.call('ZADD', queue, sequence, owner)
    redis.call('HSET', state, 'place', sequence)
    remember(0, tonumber(known[1] or nil))
  end
  write_entry(owner, lease, mode, info)
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
return { 0, retry_after, ahead, sequence, shown or '', left, token, note, age, shown_mode, count }
