-- What the scripts about one lock share. Every check, and the only write that a full server may
-- refuse, comes before the first effect: an error in the middle is not rolled back. Messages are
-- sent by pcall, because a server may refuse to publish.
local name, state, queue, places, grave = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local publish_verb, inbox, free_channel = ARGV[1], ARGV[2], ARGV[3]
-- How long a token is remembered; how many of our own are served in a row before others get a
-- chance (0: no limit, -1: whoever asks first); how long that chance lasts. In ms.
local memory, row_max, grace = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local barging = row_max < 0

local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)

-- tostring would round a number of more than 14 digits.
local function whole(number) return string.format('%.0f', number) end

-- How many heard it.
local function publish(channel, message)
  if channel == '' then return 0 end
  local heard = redis.pcall(publish_verb, channel, message)
  return type(heard) == 'number' and heard or 0
end

-- Tells a claim's client: granted, look (after a while), or evicted.
local function tell(owner, word, place, token, wait)
  local client, number = string.match(owner, '^([^:]*):(.*)$')
  if not client then return end
  publish(inbox .. client, table.concat({ number, word, place, token, whole(wait) }, ' '))
end

-- A clock that was set back has to pass the token before it is forgotten, or tokens would go back.
local function remember(lease, token)
  local ahead = math.max(0, math.ceil((token or 0) / 1000) - now_ms)
  redis.call('PEXPIRE', state, whole(math.max(memory, 2 * lease) + ahead))
end

-- The next token: the clock in µs, or one more than the last where the clock is not ahead of it.
local function next_token(stored)
  return (stored and stored >= now_us) and stored + 1 or now_us
end

-- The lock must be free.
local function grant(owner, lease, note, row, stored)
  local token = next_token(stored)
  put(name, owner, lease)
  redis.call('HSET', state, 'token', whole(token), 'owner', owner, 'note', note,
    'since', whole(now_ms), 'row', row)
  remember(lease, token)
  return whole(token)
end

local function leave(owner)
  redis.call('ZREM', queue, owner)
  redis.call('HDEL', places, owner)
end

-- The first waiter whose place still lives: owner, ms left, note, place. Removes the dead before it.
local function head()
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    local owner = first[1]
    if not owner then return nil end
    local deadline, lease, note =
      string.match(redis.call('HGET', places, owner) or '', '^(%d+) (%d+) (.*)$')
    if deadline then
      -- After the clock was set back, a dead place must not live for longer than its lease.
      local left = math.min(tonumber(deadline) - now_ms, tonumber(lease))
      if left > 0 then return owner, left, note, first[2] end
    end
    leave(owner)
  end
end

-- The lock must be free. Hands it to the first living waiter: the place's lease becomes the lock's,
-- so that the waiter knows its end already.
local function serve(row, stored)
  local owner, left, note, place = head()
  if not owner then
    publish(free_channel, '0')
    return
  end
  if barging then
    publish(free_channel, '0')
    return tell(owner, 'l', place, '0', 0)
  end
  if row_max > 0 and row >= row_max and publish(free_channel, '0') > 0 then
    redis.call('HSET', state, 'row', 0, 'window', whole(now_ms + grace))
    if redis.call('PTTL', state) < memory then remember(0, stored) end
    return tell(owner, 'l', place, '0', grace)
  end
  leave(owner)
  tell(owner, 'g', place, grant(owner, left, note, row + 1, stored), left)
end
