-- For Redlock: makes every later grant on this node have a higher token than this one, if the owner
-- holds the lock here.
--
-- KEYS: lock, state. ARGV: owner, token, how long tokens are remembered in ms.
-- Returns 1 if it was raised, 0 if the owner does not hold.
if held_by(KEYS[1], ARGV[1]) ~= 1 then return 0 end
local last = tonumber(redis.call('HGET', KEYS[2], 'token') or nil)
if not last or last < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[2], 'token', ARGV[2], 'owner', ARGV[1])
end
-- This node's clock has to pass the token before it is forgotten, or tokens would go back.
local ahead = math.max(0, math.ceil(tonumber(ARGV[2]) / 1000) - redis.call('TIME')[1] * 1000)
local memory = tonumber(ARGV[3]) + ahead
if redis.call('PTTL', KEYS[2]) < memory then
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', memory))
end
return 1
