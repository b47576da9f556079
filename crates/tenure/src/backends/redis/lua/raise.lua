-- For Redlock: makes the claim's grant on this node have this token, and every later one a higher
-- token, if the owner holds the lock here.
--
-- Readers that hold together could get the same number from different nodes. Two majorities share a
-- node, on which the second of them is refused.
--
-- KEYS: lock, state, grants. ARGV: owner, token, how long tokens are remembered in ms.
-- Returns 1 if it was raised, 0 if the owner does not hold, or another holder has that token.
local owner, first = ARGV[1], tonumber(ARGV[2])
local last, fields = first, {}
if held_by(KEYS[1], owner) == 1 then
  last = first + range_size - 1
  fields = { 'first', ARGV[2], 'owner', owner }
else
  if holder_of(KEYS[1]) ~= '~shared' then return 0 end
  local held = false
  local all = redis.call('HGETALL', KEYS[3])
  for i = 1, #all, 2 do
    if all[i] == owner then
      held = all[i + 1]
    elseif string.match(all[i + 1], '^(%d+) %d') == ARGV[2] then
      return 0
    end
  end
  local rest = held and string.match(held, '^%d+ %d+ (.*)$')
  if not rest then return 0 end
  -- A grant that was downgraded has its token, and its range.
  if string.match(held, '^(%d+)') ~= ARGV[2] then
    redis.call('HSET', KEYS[3], owner, ARGV[2] .. ' ' .. ARGV[2] .. ' ' .. rest)
  end
end
local known = tonumber(redis.call('HGET', KEYS[2], 'token') or nil)
if not known or known < last then
  redis.call('HSET', KEYS[2], 'token', string.format('%.0f', last), unpack(fields))
end
-- This node's clock has to pass the token before it is forgotten, or tokens would go back.
local ahead = math.max(0, math.ceil(last / 1000) - redis.call('TIME')[1] * 1000)
local memory_left = tonumber(ARGV[3]) + ahead
if redis.call('PTTL', KEYS[2]) < memory_left then
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', memory_left))
end
return 1
