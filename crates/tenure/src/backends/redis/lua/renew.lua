-- Extends what is still held; creates nothing. KEYS are pairs of lock and state; ARGV begins with how
-- long tokens are remembered, then pairs of owner and ttl.
local answers = {}
for i = 1, #KEYS, 2 do
  local ttl = tonumber(ARGV[i + 2])
  local answer = held_by(KEYS[i], ARGV[i + 1])
  if answer == 1 then
    redis.call('PEXPIRE', KEYS[i], ttl)
    redis.call('PEXPIRE', KEYS[i + 1], math.max(tonumber(ARGV[1]), 2 * ttl))
  end
  answers[#answers + 1] = answer
end
return answers
