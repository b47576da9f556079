-- Reads the holders and the waiters.
--
-- KEYS: lock, state, queue, entries, ends, grants. ARGV: how many waiters at most.
-- Returns { what is in the lock, holders, waiters }: of each holder { owner, ms left, token, info,
-- age, mode }, of each waiter { owner, info, age, mode }; or { '' } if the lock is free.
local holder, left, wrong = holder_of(KEYS[1])
if wrong or not holder then return { '' } end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function age_of(since) return math.max(0, now_ms - (tonumber(since or 0) or 0)) end

local function one_holder()
  local known = redis.call('HMGET', KEYS[2], 'token', 'owner', 'note', 'since', 'first')
  if known[2] ~= holder then return { holder, left, '', '', -1, 'x' } end
  return { holder, left, own_token(known[1], known[5]), known[3] or '', age_of(known[4]), 'x' }
end

local function several_holders()
  local shown = {}
  local living = redis.call('ZRANGEBYSCORE', KEYS[5], now_ms, '+inf', 'WITHSCORES')
  for i = 1, #living, 2 do
    local text = redis.call('HGET', KEYS[6], living[i]) or ''
    local token, since, mode, note = string.match(text, '^(%d+) %d+ (%d+) ([sp][%d/]*)\n(.*)$')
    if token then
      local lasts = tonumber(living[i + 1]) - now_ms
      shown[#shown + 1] = { living[i], lasts, token, note, age_of(since), mode }
    end
  end
  return shown
end

local is_one = holder ~= '~shared' and holder ~= '~permits'
local shown = is_one and { one_holder() } or several_holders()
local waiters = {}
local queued = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES')
for i = 1, #queued, 2 do
  if #waiters >= tonumber(ARGV[1]) then break end
  local text = redis.call('HGET', KEYS[4], queued[i]) or ''
  local deadline, rest = string.match(text, '^(%d+) %d+ (.*)$')
  if deadline and tonumber(deadline) > now_ms then
    local waits = math.max(0, now_ms - math.floor(tonumber(queued[i + 1]) / 1000))
    local mode, note = string.match(rest, '^([xsp][%d/]*)\n(.*)$')
    waiters[#waiters + 1] = { queued[i], note or rest, waits, mode or 'x' }
  end
end
return { holder, shown, waiters }
