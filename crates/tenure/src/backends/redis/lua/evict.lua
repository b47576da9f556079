-- Force-releases exactly the grant with this token, and notifies its holder.
--
-- ARGV: token. Returns 1 if it was evicted, 0 if that grant does not hold the lock.
local token = ARGV[4]
local holder, _, wrong = holder_of(name)
if wrong then return redis.error_reply(wrong) end
local known = redis.call('HMGET', state, 'token', 'owner', 'row')
if not holder or known[2] ~= holder or known[1] ~= token then return 0 end
redis.call('HDEL', state, 'owner', 'note', 'since')
redis.call('DEL', name)
notify(holder, 'e', '0', token, 0)
hand_off(tonumber(known[3] or 0) or 0, tonumber(token))
return 1
