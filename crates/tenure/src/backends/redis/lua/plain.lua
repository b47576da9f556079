-- How a held lock is read: a string, the owner, as SET NX PX writes it.

-- The holder, and how long its lease still lasts in ms (-1: it has no expiry); or what is wrong
-- with the key.
local function holder_of(key)
  local owner = redis.pcall('GET', key)
  if type(owner) == 'table' then return nil, 0, owner.err end
  if not owner then return nil, 0 end
  return owner, redis.call('PTTL', key)
end

-- Whether this owner holds: 1 yes, 0 the lock is free, -1 the key is no lock of this layout, -2
-- another owner does.
local function held_by(key, owner)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' then return -1 end
  if not found then return 0 end
  if found == owner then return 1 end
  return -2
end
