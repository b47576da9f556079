-- Extends what is still held; creates nothing. KEYS are pairs of lock and state; ARGV begins with how
-- long tokens are remembered, then four for each pair: owner, ttl, token of the grant that is renewed
-- (empty: any), and 1 if its lease is fixed.
local answers = {}
for i = 1, #KEYS, 2 do
  local owner, ttl = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local token, fixed = tonumber(ARGV[2 * i + 2]), ARGV[2 * i + 3] == '1'
  local answer = held_by(KEYS[i], owner)
  if answer == 1 and token then
    -- A later grant of the same owner, made by a request that came late, is another one: this one
    -- ended before, by an eviction or with its lease. (Redlock renews with the highest token of all
    -- nodes, so that a lower one is no other grant.)
    local known = redis.pcall('HMGET', KEYS[i + 1], 'owner', 'token')
    if not known.err and known[1] == owner and (tonumber(known[2] or nil) or 0) > token then
      answer = -3
    end
  end
  if answer == 1 then
    -- A fixed lease is confirmed with what the holder thinks is left of it, which may be less than
    -- the server knows. For any other this also sets right what a clock that was set back made long.
    if not fixed or redis.call('PTTL', KEYS[i]) < ttl then redis.call('PEXPIRE', KEYS[i], ttl) end
    local memory = math.max(tonumber(ARGV[1]), 2 * ttl)
    -- It may be remembered for longer, where the clock was set back.
    if redis.call('PTTL', KEYS[i + 1]) < memory then redis.call('PEXPIRE', KEYS[i + 1], memory) end
  end
  answers[#answers + 1] = answer
end
return answers
