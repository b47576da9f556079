-- Who holds and who waits, for people. KEYS: lock, state, queue, places. ARGV: the most waiters.
local holder, left, wrong = holder_of(KEYS[1])
if wrong or not holder then return { '' } end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local known = redis.call('HMGET', KEYS[2], 'token', 'owner', 'note', 'since')
local ours = known[2] == holder
local age = ours and math.max(0, now_ms - (tonumber(known[4] or 0) or 0)) or -1
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
return { holder, left, ours and known[1] or '', ours and known[3] or '', age, waiters }
