-- What the scripts about one lock share: acquire, release, evict. `holders.lua` and `handoff.lua`
-- go on.
--
-- State: the lock (who holds it, with the lease as its expiry), beside it the state (last token,
-- and of an exclusive grant its first token, owner, holder info and since when; handoffs in a row,
-- a window for foreign clients), the queue (owner -> sequence), its entries (owner -> deadline,
-- lease, mode, holder info), tombstones, and what `holders.lua` keeps of several holders.
--
-- Who may change it: these scripts and the two that renew change all of it; foreign clients write
-- and delete only the lock. So a lock that is held by an owner whom the state does not name is a
-- foreign client's, or its state is lost; and a lock that is free may have a queue.
--
-- Invariants:
-- * A token is higher than every token before it, as long as the state lives: it is the clock in
--   us, or one more than the last token. An exclusive grant owns 1024 of them, from `first` to
--   `token` of the state; a reader and a permit own one. The state lives for longer than any grant.
-- * A free lock with a queue goes to the first waiter whose entry is alive, never to a newcomer.
-- * A handoff grants what is left of the lease of the queue entry, and no more: the waiter counts
--   its deadline from before the request that wrote this lease.
-- * Messages come after the effects that they are about, and losing one costs time only: each
--   waiter requests again before its entry ends.
--
-- Modes are texts: 'x' exclusive, 's' shared, 'p<permits>/<limit>'. An earlier version of tenure
-- has no modes: its entries have none, count as exclusive, and are granted a single token, since
-- its renewals compare with the last one of the state.
--
-- The server runs one script at a time, so that nothing changes under it. But an error in the
-- middle is not rolled back. So every check, and the only write that a full server may refuse,
-- comes before the first effect; and messages are sent by pcall, because a server may refuse to
-- publish.
--
-- KEYS: lock, state, queue (owner -> sequence), entries (owner -> deadline, lease, mode and holder
-- info), tombstone of the owner that the script is about, ends and grants (see holders.lua).
local name, state, queue, entries, tombstone = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ends, grants = KEYS[6], KEYS[7]
-- The command that publishes, what the channels of clients begin with, the channel that says that
-- the lock is free.
local publish_command, client_channels, free_channel = ARGV[1], ARGV[2], ARGV[3]
-- What the script has read of the state: its last token, and the handoffs in a row.
local last_token, row

time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)

-- The digits of a whole number: tostring would round one of more than 14 digits. (Redis does not, in
-- the arguments of a command.)
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

-- Extends the life of the state, and never shortens it: acquire_first.lua relies on what it has
-- set. After the clock was set back, it has to pass the token before that is forgotten, or tokens
-- would go back.
local function remember(lease, token)
  local ahead = math.max(0, math.ceil((token or 0) / 1000) - now_ms)
  local life = math.max(memory, 2 * lease) + ahead
  if redis.call('PTTL', state) < life then redis.call('PEXPIRE', state, whole(life)) end
end

-- The next token: the clock in µs, or one more than the last where the clock is not ahead of it.
local function next_token()
  return (last_token and last_token >= now_us) and last_token + 1 or now_us
end

-- Grants the lock exclusively, which must be free, with so many tokens. Returns the first one.
local function grant_exclusive(owner, lease, info, size)
  local first = next_token()
  put(name, owner, lease)
  last_token = first + size - 1
  redis.call('HSET', state, 'token', last_token, 'first', first, 'owner', owner, 'note', info,
    'since', now_ms, 'row', row)
  remember(lease, last_token)
  return whole(first)
end

local function remove_entry(owner)
  redis.call('ZREM', queue, owner)
  redis.call('HDEL', entries, owner)
end

-- A queue entry: ms left, lease, mode, holder info, and how many tokens an exclusive grant of it
-- owns; nil if there is none. The line break cannot occur in what an earlier version wrote.
local function entry_of(owner)
  local text = redis.call('HGET', entries, owner) or ''
  local size = range_size
  local deadline, lease, mode, info = string.match(text, '^(%d+) (%d+) ([xsp][%d/]*)\n(.*)$')
  if not deadline then
    mode, size = 'x', 1
    deadline, lease, info = string.match(text, '^(%d+) (%d+) (.*)$')
    if not deadline then return nil end
  end
  -- After the clock was set back, a dead entry must not live for longer than its lease.
  return math.min(deadline - now_ms, tonumber(lease)), mode, info, size
end

-- Writes the entry of a waiter.
local function write_entry(owner, lease, mode, info)
  redis.call('HSET', entries, owner,
    whole(now_ms + lease) .. ' ' .. whole(lease) .. ' ' .. mode .. '\n' .. info)
end

-- The first waiter whose entry is alive: owner, sequence, and what `entry_of` says. Removes the
-- dead ones before it.
local function first_waiter()
  while true do
    local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
    local owner = first[1]
    if not owner then return nil end
    local left, mode, info, size = entry_of(owner)
    if left and left > 0 then return owner, first[2], left, mode, info, size end
    remove_entry(owner)
  end
end
