-- What the scripts about one lock share: acquire, release, evict.
--
-- State: the lock (who holds it, with the lease as its expiry), beside it the state (last token,
-- owner, holder info, since when, handoffs in a row, a window for foreign clients), the queue
-- (owner -> sequence), its entries (owner -> deadline, lease, holder info), and tombstones.
--
-- Who may change it: these scripts and renew.lua change all of it; foreign clients write and delete
-- only the lock. So a lock that is held by an owner whom the state does not name is a foreign
-- client's, or its state is lost; and a lock that is free may have a queue.
--
-- Invariants:
-- * A token is higher than every token before it, as long as the state lives: it is the clock in
--   us, or one more than the last token. The state lives for longer than any grant.
-- * A free lock with a queue goes to the first waiter whose entry is alive, never to a newcomer.
-- * A handoff grants what is left of the lease of the queue entry, and no more: the waiter counts
--   its deadline from before the request that wrote this lease.
-- * Messages come after the effects that they are about, and losing one costs time only: each
--   waiter requests again before its entry ends.
--
-- The server runs one script at a time, so that nothing changes under it. But an error in the
-- middle is not rolled back. So every check, and the only write that a full server may refuse,
-- comes before the first effect; and messages are sent by pcall, because a server may refuse to
-- publish.
--
-- KEYS: lock, state, queue (owner -> sequence), entries (owner -> deadline, lease and holder info),
-- tombstone of the owner that the script is about.
local name, state, queue, entries, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
-- The command that publishes, what the channels of clients begin with, the channel that says that
-- the lock is free.
local publish_command, client_channels, free_channel = ARGV[1], ARGV[2], ARGV[3]

local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)

-- The digits of a whole number: tostring would round one of more than 14 digits.
local function whole(number) return string.format('%.0f', number) end

-- Returns how many clients received the message.
local function publish(channel, message)
  if channel == '' then return 0 end
  local received = redis.pcall(publish_command, channel, message)
  return type(received) == 'number' and received or 0
end

-- Sends a message to the client of an owner: 'g' granted, 'l' recheck (after so many ms), 'e'
-- evicted. The sequence says which queue entry of the owner is meant: a message may arrive when
-- that entry has lapsed and the owner has another one.
local function notify(owner, kind, sequence, token, wait)
  local client, number = string.match(owner, '^([^:]*):(.*)$')
  if not client then return end
  local message = { number, kind, sequence, token, whole(wait) }
  publish(client_channels .. client, table.concat(message, ' '))
end

-- Extends the life of the state, and never shortens it: fast.lua relies on what it has set. After
-- the clock was set back, it has to pass the token before that is forgotten, or tokens would go
-- back.
local function remember(lease, token)
  local ahead = math.max(0, math.ceil((token or 0) / 1000) - now_ms)
  local life = math.max(memory, 2 * lease) + ahead
  if redis.call('PTTL', state) < life then redis.call('PEXPIRE', state, whole(life)) end
end

-- The next token: the clock in µs, or one more than the last where the clock is not ahead of it.
local function next_token(last)
  return (last and last >= now_us) and last + 1 or now_us
end

-- Grants the lock, which must be free. Returns the token.
local function grant(owner, lease, info, row, last_token)
  local token = next_token(last_token)
  put(name, owner, lease)
  redis.call('HSET', state, 'token', whole(token), 'owner', owner, 'note', info,
    'since', whole(now_ms), 'row', row)
  remember(lease, token)
  return whole(token)
end

local function remove_entry(owner)
  redis.call('ZREM', queue, owner)
  redis.call('HDEL', entries, owner)
end

-- The first waiter whose entry is alive: owner, ms left, holder info, sequence. Removes the dead
-- ones before it.
local function first_waiter()
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    local owner = first[1]
    if not owner then return nil end
    local deadline, lease, info =
      string.match(redis.call('HGET', entries, owner) or '', '^(%d+) (%d+) (.*)$')
    if deadline then
      -- After the clock was set back, a dead entry must not live for longer than its lease.
      local left = math.min(tonumber(deadline) - now_ms, tonumber(lease))
      if left > 0 then return owner, left, info, first[2] end
    end
    remove_entry(owner)
  end
end

-- Hands the lock, which must be free, to the first living waiter. The rest of the entry's lease
-- becomes the lock's, so that the waiter knows its end already: it counts from before its
-- last request that got a response, and the entry's deadline was set after that.
local function hand_off(row, last_token)
  local owner, left, info, sequence = first_waiter()
  if not owner then
    publish(free_channel, '0')
    return
  end
  if barging then
    -- The lock stays free: the first waiter competes with newcomers and foreign clients.
    publish(free_channel, '0')
    return notify(owner, 'l', sequence, '0', 0)
  end
  if row_max > 0 and row >= row_max and publish(free_channel, '0') > 0 then
    -- A foreign client listens and cannot join the queue: the lock is left free for a moment. The
    -- window is stored, so that no request of tenure hands the lock off before it is over.
    redis.call('HSET', state, 'row', 0, 'window', whole(now_ms + grace))
    remember(0, last_token)
    return notify(owner, 'l', sequence, '0', grace)
  end
  remove_entry(owner)
  notify(owner, 'g', sequence, grant(owner, left, info, row + 1, last_token), left)
end
