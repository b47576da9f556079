-- Reads the holder and the waiters.
--
-- KEYS: lock, state, queue, entries. ARGV: how many waiters at most.
-- Returns { holder, ms left, token, info, age, { owner, info, age of each waiter } }, or { '' } if
-- the lock is free.
local holder, left, wrong = holder_of(KEYS[1])
if wrong or not holder then return { '' } end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local known = redis.call('HMGET', KEYS[2], 'token', 'owner', 'note', 'since')
local by_tenure = known[2] == holder
local age = by_tenure and math.max(0, now_ms - (tonumber(known[4] or 0) or 0)) or -1
local waiters = {}
local queued = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
for i = 1, #queued, 2 do
  if #waiters / 3 >= tonumber(ARGV[1]) then break end
  local deadline, note =
    string.match(redis.call('HGET', KEYS[4], queued[i]) or '', '^(%d+) %d+ (.*)$')
  if deadline and tonumber(deadline) > now_ms then
    local waits = math.max(0, now_ms - math.floor(tonumber(queued[i + 1]) / 1000))
    for _, part in ipairs({ queued[i], note, waits }) do waiters[#waiters + 1] = part end
  end
end
return { holder, left, by_tenure and known[1] or '', by_tenure and known[3] or '', age, waiters }
