-- Redlock: no later grant on this node may have a token as low as this one.
-- KEYS: lock, state. ARGV: owner, token, how long tokens are remembered in ms.
if held_by(KEYS[1], ARGV[1]) ~= 1 then return 0 end
local stored = tonumber(redis.call('HGET', KEYS[2], 'token') or nil)
if not stored or stored < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[2], 'token', ARGV[2], 'owner', ARGV[1])
end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
return 1
