-- Writes a lock that is free: a string, the owner, as SET NX PX writes it.
local function put(key, owner, lease)
  redis.call('SET', key, owner, 'PX', lease)
end

-- Deletes the lock if this owner holds it. Whether it did.
local function delete_held(key, owner)
  return redis.pcall('GET', key) == owner and redis.call('DEL', key) == 1
end

