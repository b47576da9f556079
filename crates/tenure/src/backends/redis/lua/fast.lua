-- The usual case, which the scripts try before anything else: no claim waits for the lock, and its
-- outcome is not in question. What these functions do not do is left to the rest of the script, so
-- that they have to agree with it: see `grant` and `hand_off` in common.lua.

-- The server's clock, once it was read. A script for many claims reads it once: it runs for a
-- millisecond or two, and tokens of a key grow whatever the clock says.
local time

-- Grants a lock that is free, if no claim waits for it and this claim was not cancelled. Returns
-- the token, or nil if the rest of the script has to decide.
--
-- The state outlives its last token by `memory`. To set that expiry with every grant would be
-- one command more: it is set somewhat longer than needed, and 'expires' says when it ends.
-- Other scripts only ever extend it.
local function acquire_free(lock, state, queue, tombstone, owner, ttl, info)
  if redis.call('EXISTS', lock, queue, tombstone) > 0 then return nil end
  local known = redis.call('HMGET', state, 'token', 'window', 'expires')
  time = time or redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  local now_ms = math.floor(now_us / 1000)
  -- A moment that is left to foreign clients.
  if known[2] and not barging and tonumber(known[2]) > now_ms then return nil end
  local last = tonumber(known[1] or nil)
  local number = (last and last >= now_us) and last + 1 or now_us
  local token, since = string.format('%.0f', number), string.format('%.0f', now_ms)
  put(lock, owner, ttl)
  -- After the clock was set back, it has to pass the token before that is forgotten.
  local life = math.max(memory, 2 * ttl) + math.max(0, math.ceil(number / 1000) - now_ms)
  if (tonumber(known[3] or 0) or 0) >= now_ms + life then
    redis.call('HSET', state, 'token', token, 'owner', owner, 'note', info, 'since', since,
      'row', 0)
  else
    life = life + math.floor(memory / 8)
    redis.call('HSET', state, 'token', token, 'owner', owner, 'note', info, 'since', since,
      'row', 0, 'expires', string.format('%.0f', now_ms + life))
    redis.call('PEXPIRE', state, string.format('%.0f', life))
  end
  return token
end

-- Releases a lock that this owner holds, if no claim waits for it. Whether it did. What the state
-- says about the holder stays: it counts only as long as the lock itself names the same owner.
local function release_held(lock, queue, owner, publish_command, free_channel)
  if redis.call('EXISTS', queue) > 0 or not delete_held(lock, owner) then return false end
  if free_channel ~= '' then redis.pcall(publish_command, free_channel, '0') end
  return true
end
