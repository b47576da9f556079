-- Gives back, withdraws or undoes. What is in doubt is buried: a request that arrives late is refused.
local owner, bury = ARGV[7], tonumber(ARGV[8])
local holder, _, wrong = holder_of(name)
local known = redis.call('HMGET', state, 'token', 'window', 'row')
local stored, row = tonumber(known[1] or nil), tonumber(known[3] or 0) or 0
local place = redis.call('ZSCORE', queue, owner)

local function close()
  if bury > 0 then redis.pcall('SET', grave, '1', 'PX', bury) end
end

if holder == owner then
  redis.call('HDEL', state, 'owner', 'note', 'since')
  redis.call('DEL', name)
  if place then leave(owner) end
  close()
  serve(row, stored)
  return 2
end
if not place then
  close()
  return 0
end
local first = redis.call('ZRANGE', queue, 0, 0)[1]
leave(owner)
close()
if not holder and not wrong and (tonumber(known[2] or 0) or 0) <= now_ms then
  serve(row, stored)
elseif first == owner then
  -- The next one has to look when the lock can become free by itself.
  local next_owner, _, _, next_place = head()
  if next_owner then tell(next_owner, 'l', next_place, '0', 0) end
end
return 1
