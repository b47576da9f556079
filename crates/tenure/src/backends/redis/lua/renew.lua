-- Extends what is still held; creates nothing. So it may be sent again when its response was lost.
--
-- State: the lock and its state, of many claims at once. Each is renewed or refused by itself, and
-- an error of one pair (a key of another type) does not stop the others.
--
-- Invariants:
-- * Only the owner that the lock names is renewed, and only the grant that it knows: a later grant
--   of the same owner is refused.
-- * A lease that has ended is not revived: its key is gone, and nothing is written.
-- * The state outlives the lease, so that the next token is higher.
--
-- KEYS: pairs of lock and state. ARGV: how long tokens are remembered in ms; then four for each
-- pair: owner, ttl, token of the grant that is renewed (empty: any), and 1 if its lease is fixed.
-- Returns for each pair 1 if it was renewed, or why not: see held_by, -3 for another grant of the
-- same owner, and -4 if there are readers or permits, of which renew_shared.lua knows.
local memory_min, results = tonumber(ARGV[1]), {}
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 1, #KEYS, 2 do
  local owner, ttl = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local token, fixed = tonumber(ARGV[2 * i + 2]), ARGV[2 * i + 3] == '1'
  local result = held_by(KEYS[i], owner)
  if result == -2 then
    local holder = holder_of(KEYS[i])
    if holder == '~shared' or holder == '~permits' then result = -4 end
  elseif result == 1 then
    local known = redis.pcall('HMGET', KEYS[i + 1], 'owner', 'token', 'expires')
    if known.err then known = {} end
    -- A later grant of the same owner, made by a request that arrived late, is another one: this
    -- one ended before, by an eviction or with its lease. The state has the last token of its range.
    -- (Redlock renews with the highest token of all nodes, so that a lower one is no other grant.)
    local last = tonumber(known[2] or nil) or 0
    if token and known[1] == owner and last - range_size + 1 > token then
      result = -3
    else
      -- A fixed lease is confirmed with what the holder thinks is left of it, which may be less
      -- than the server knows. For any other lease this also corrects an expiry that is too far
      -- away because the clock was set back.
      if not fixed or redis.call('PTTL', KEYS[i]) < ttl then redis.call('PEXPIRE', KEYS[i], ttl) end
      -- Mostly the state is known to live for long enough (see acquire_first.lua). It may also live
      -- for longer than it is known to, where the clock was set back.
      local memory = math.max(memory_min, 2 * ttl)
      if (tonumber(known[3] or nil) or 0) < now_ms + memory
        and redis.call('PTTL', KEYS[i + 1]) < memory then
        redis.call('PEXPIRE', KEYS[i + 1], memory)
      end
    end
  end
  results[#results + 1] = result
end
return results
