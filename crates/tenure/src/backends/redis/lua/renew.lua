-- Extends what is still held; creates nothing. KEYS are pairs of lock and state; ARGV begins with how
-- long tokens are remembered, then pairs of owner and ttl.
local answers = {}
for i = 1, #KEYS, 2 do
  local ttl = tonumber(ARGV[i + 2])
  local answer = held_by(KEYS[i], ARGV[i + 1])
  if answer == 1 then
    redis.call('PEXPIRE', KEYS[i], ttl)
    local memory = math.max(tonumber(ARGV[1]), 2 * ttl)
    -- It may be remembered for longer, where the clock was set back.
    if redis.call('PTTL', KEYS[i + 1]) < memory then redis.call('PEXPIRE', KEYS[i + 1], memory) end
  end
  answers[#answers + 1] = answer
end
return answers
