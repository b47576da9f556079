-- Extends grants that are held beside others: of readers, and permits. As renew.lua, it creates
-- nothing, and an error of one claim does not stop the others.
--
-- A late renewal shortens nothing: an end counts from when it is carried out. That also corrects an
-- end that is too far away because the clock was set back. A fixed lease is confirmed with what the
-- holder thinks is left of it, which may be less than the server knows.
--
-- KEYS: of each claim lock, state, ends and grants (see holders.lua). ARGV: how long tokens are
-- remembered in ms; then four for each claim, as in renew.lua.
-- Returns for each claim 1 if it was renewed, 0 if it does not hold, -1 if the key is no lock of
-- this layout, -2 if another owner holds it exclusively, -3 for another grant of the same owner, and
-- -4 if it holds exclusively.
local memory_min, results = tonumber(ARGV[1]), {}
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- Makes all of it live as long as the longest lease of a holder.
local function extend(lock, ends, grants)
  local longest = redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]
  local left = string.format('%.0f', tonumber(longest) - now_ms)
  for _, key in ipairs({ lock, ends, grants }) do redis.call('PEXPIRE', key, left) end
end

local function renew(lock, state, ends, grants, owner, ttl, token, fixed)
  local holder, _, wrong = holder_of(lock)
  if wrong then return -1 end
  if not holder then return 0 end
  if holder == owner then return -4 end
  if holder ~= '~shared' and holder ~= '~permits' then return -2 end
  local last_ms = tonumber(redis.call('ZSCORE', ends, owner) or nil)
  if not last_ms or last_ms < now_ms then return 0 end
  local own = tonumber(string.match(redis.call('HGET', grants, owner) or '', '^%d+') or nil)
  if token and own and own > token then return -3 end
  if not fixed or last_ms < now_ms + ttl then
    -- A full server refuses to add as the first write, but not this one.
    redis.call('PEXPIRE', grants, ttl)
    redis.call('ZADD', ends, string.format('%.0f', now_ms + ttl), owner)
  end
  extend(lock, ends, grants)
  local memory_left = math.max(memory_min, 2 * ttl)
  if redis.call('PTTL', state) < memory_left then redis.call('PEXPIRE', state, memory_left) end
  return 1
end

for i = 1, #KEYS, 4 do
  local fine, result = pcall(renew, KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], ARGV[i + 1],
    tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), ARGV[i + 4] == '1')
  results[#results + 1] = fine and result or -1
end
return results
