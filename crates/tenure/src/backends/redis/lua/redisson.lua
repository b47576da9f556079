-- How a held lock is read: Redisson's RLock, a hash with one field, the owner, that counts its
-- holds.

-- The holder, and how long its lease still lasts in ms; or what is wrong with the key.
local function holder_of(key)
  local fields = redis.pcall('HLEN', key)
  if type(fields) == 'table' then return nil, 0, fields.err end
  if fields == 0 then return nil, 0 end
  local left = redis.call('PTTL', key)
  if fields > 1 or left < 0 then
    return nil, 0, 'NOTALOCK the hash at this key is not a lock'
  end
  return redis.call('HKEYS', key)[1], left
end

-- Whether this owner holds: 1 yes, 0 the lock is free, -1 the key is no lock of this layout, -2
-- another owner does.
local function held_by(key, owner)
  local found = redis.pcall('HEXISTS', key, owner)
  if type(found) == 'table' then return -1 end
  if found == 1 then return 1 end
  return -2 * redis.call('EXISTS', key)
end
