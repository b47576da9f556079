-- The usual case of acquire.lua, with the same arguments, which is tried before anything else: the
-- claim is exclusive and was not cancelled, the lock is free, and no claim waits for it. What this
-- does not do is left to the rest of the script, so that they have to agree: see `grant_exclusive`
-- in common.lua. A lock that does not exist has no readers either: it would hold their marker.
--
-- The state outlives its last token by `memory`. To set that expiry with every grant would be one
-- command more: it is set somewhat longer than needed, and 'expires' says when it ends. Other
-- scripts only ever extend it.
if not ARGV[8] and redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[5]) == 0 then
  local state, ttl = KEYS[2], tonumber(ARGV[5])
  local known = redis.call('HMGET', state, 'token', 'window', 'expires')
  -- A script for many claims reads the clock once: it runs for a millisecond or two, and tokens of
  -- a key grow whatever the clock says.
  time = time or redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  local now_ms = (now_us - now_us % 1000) / 1000
  -- Otherwise it is a moment that is left to foreign clients.
  if not known[2] or barging or tonumber(known[2]) <= now_ms then
    local last = tonumber(known[1] or nil)
    local first = (last and last >= now_us) and last + 1 or now_us
    -- The grant owns a range of tokens, which ends with this one. Redis writes a whole number with
    -- all of its digits, if Lua does not make a text of it.
    local token = first + range_size - 1
    put(KEYS[1], ARGV[4], ttl)
    -- After the clock was set back, it has to pass the token before that is forgotten.
    local life, ahead = 2 * ttl, (token - token % 1000) / 1000 + 1 - now_ms
    if life < memory then life = memory end
    if ahead > 0 then life = life + ahead end
    if (tonumber(known[3] or 0) or 0) >= now_ms + life then
      redis.call('HSET', state, 'token', token, 'first', first, 'owner', ARGV[4], 'note', ARGV[7],
        'since', now_ms, 'row', 0)
    else
      life = life + math.floor(memory / 8)
      redis.call('HSET', state, 'token', token, 'first', first, 'owner', ARGV[4], 'note', ARGV[7],
        'since', now_ms, 'row', 0, 'expires', now_ms + life)
      redis.call('PEXPIRE', state, life)
    end
    return { 1, first, ttl }
  end
end
