-- Force-releases exactly the grant in whose range this token is, and notifies its holder. Others
-- that hold beside it stay.
--
-- ARGV: token. Returns 1 if it was evicted, 0 if that grant does not hold the lock.
local token = tonumber(ARGV[4])
local holder, _, wrong = holder_of(name)
if wrong then return redis.error_reply(wrong) end
local known = redis.call('HMGET', state, 'token', 'owner', 'row', 'first')
last_token, row = tonumber(known[1] or nil), tonumber(known[3] or 0) or 0

if is_marker(holder) then
  holder = drop_expired(holder)
  local all = holder and redis.call('HGETALL', grants) or {}
  for i = 1, #all, 2 do
    local first, last = string.match(all[i + 1], '^(%d+) (%d+) ')
    if first and token >= tonumber(first) and token <= tonumber(last) then
      remove_holder(all[i])
      holder = settle_holders(holder)
      notify(all[i], 'e', '0', first, 0)
      hand_off(holder, '', 0)
      return 1
    end
  end
  return 0
end

if not holder or known[2] ~= holder or not last_token then return 0 end
local first = own_token(known[1], known[4])
if token < tonumber(first) or token > last_token then return 0 end
redis.call('HDEL', state, 'owner', 'note', 'since')
redis.call('DEL', name)
notify(holder, 'e', '0', first, 0)
hand_off(nil, '', 0)
return 1
