-- Writes a lock that is free: Redisson's RLock, a hash with one field, the owner, that counts its
-- holds.
local function put(key, owner, lease)
  redis.call('HSET', key, owner, 1)
  redis.call('PEXPIRE', key, lease)
end

-- Deletes the lock if this owner holds it. Whether it did.
local function delete_held(key, owner)
  return redis.pcall('HDEL', key, owner) == 1
end

