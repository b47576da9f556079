-- Removes all traces of an owner: its grant, exclusive or beside others, and its queue entry. If
-- the outcome of one of its requests is unknown, a tombstone stays, so that a request that arrives
-- late is refused.
--
-- It compares the owner before it deletes, so that it never touches the lock of another one; and it
-- hands the lock off in the same step, so that no newcomer comes between.
--
-- Order of the effects: the lock is deleted before the tombstone is written, because a server that
-- is out of memory refuses to write and still deletes. Then the tombstone of an unknown outcome is
-- missing, and a late request may hold the lock for one lease.
--
-- A waiter that leaves the queue may have been the first: readers behind a writer may fit now. And
-- the next one, if it is not granted, may have to request again, since a lease may end without a
-- release. And it may have been the one for whom the lock was left free: then the lock is handed
-- off here.
--
-- ARGV: owner, how long the tombstone stays in ms (0: none).
-- Returns 2 if it held the lock, 1 if it was queued, 0 if there was nothing.
local owner, tombstone_ttl = ARGV[4], tonumber(ARGV[5])
local holder, _, wrong = holder_of(name)
local known = redis.call('HMGET', state, 'token', 'window', 'row')
last_token, row = tonumber(known[1] or nil), tonumber(known[3] or 0) or 0
local sequence = redis.call('ZSCORE', queue, owner)

-- After the lock is deleted, since a full server may refuse this write.
local function write_tombstone()
  if tombstone_ttl > 0 then redis.pcall('SET', tombstone, '1', 'PX', tombstone_ttl) end
end

if holder == owner then
  redis.call('HDEL', state, 'owner', 'note', 'since')
  redis.call('DEL', name)
  if sequence then remove_entry(owner) end
  write_tombstone()
  hand_off(nil, '', 0)
  return 2
end

local held, expired = false, false
if is_marker(holder) then
  holder, expired = drop_expired(holder)
  if holder then held = remove_holder(owner) end
  if held then holder = settle_holders(holder) end
end
local first = sequence and redis.call('ZRANGE', queue, 0, 0)[1]
if sequence then remove_entry(owner) end
write_tombstone()
if not sequence and not held and not expired then return 0 end

local window = tonumber(known[2] or 0) or 0
if not wrong and (is_marker(holder) or not holder and window <= now_ms) then
  hand_off(holder, '', 0)
end
if first == owner and (wrong or redis.call('EXISTS', name) == 1) then
  -- The next one is first now, and has to request again when the lock can become free by itself.
  local next_owner, next_sequence = first_waiter()
  if next_owner then notify(next_owner, 'l', next_sequence, '0', 0) end
end
if held then return 2 end
return sequence and 1 or 0
