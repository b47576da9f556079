-- Removes all traces of an owner: the lock if it holds that, its queue entry if it has one. If the
-- outcome of one of its requests is unknown, a tombstone stays, so that a request that arrives late
-- is refused.
--
-- It compares the owner before it deletes, so that it never touches the lock of another one; and it
-- hands the lock off in the same step, so that no newcomer comes between.
--
-- Order of the effects: the lock is deleted before the tombstone is written, because a server that
-- is out of memory refuses to write and still deletes. Then the tombstone of an unknown outcome is
-- missing, and a late request may hold the lock for one lease.
--
-- A waiter that leaves the queue may have been the first: then the next one is first, and may have
-- to request again, since the holder's lease may end without a release. And it may have been the
-- one for whom the lock was left free: then the lock is handed off here.
--
-- ARGV: owner, how long the tombstone stays in ms (0: none).
-- Returns 2 if it held the lock, 1 if it was queued, 0 if there was nothing.
local owner, tombstone_ttl = ARGV[4], tonumber(ARGV[5])
local holder, _, wrong = holder_of(name)
local known = redis.call('HMGET', state, 'token', 'window', 'row')
local last_token, row = tonumber(known[1] or nil), tonumber(known[3] or 0) or 0
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
  hand_off(row, last_token)
  return 2
end
if not sequence then
  write_tombstone()
  return 0
end
local first = redis.call('ZRANGE', queue, 0, 0)[1]
remove_entry(owner)
write_tombstone()
if not holder and not wrong and (tonumber(known[2] or 0) or 0) <= now_ms then
  hand_off(row, last_token)
elseif first == owner then
  -- The next one is first now, and has to request again when the lock can become free by itself.
  local next_owner, _, _, next_sequence = first_waiter()
  if next_owner then notify(next_owner, 'l', next_sequence, '0', 0) end
end
return 1
