-- Several holders at once: readers, or permits of a semaphore.
--
-- State: the lock holds a marker instead of an owner, '~shared' or '~permits', which foreign
-- clients and earlier versions of tenure see as a holder (an owner id never begins so). Beside it
-- are the ends (owner -> end of its lease, in ms) and the grants (owner -> `<token> <last token>
-- <since> <mode>`, a line break, and the holder info; '#' -> the sum of the weights; '~oldest' ->
-- the owner with the lowest token, if known). All three expire with the longest lease of a holder.
--
-- Invariants:
-- * Ends and grants mean something only while the lock holds a marker. A script that writes
--   one where there was none deletes what is left of them: the lock alone may have been deleted.
-- * A holder counts until its end, whether or not it was removed since. A script removes those
--   whose end has passed before it decides anything, some hundred at a time; one that is left
--   keeps others out for longer, and never lets one in.

local MARKERS = { s = '~shared', p = '~permits' }

local function is_marker(holder)
  return holder == MARKERS.s or holder == MARKERS.p
end

-- Kind and weight of a mode, and the limit for the sum of the weights.
local function read_mode(mode)
  local kind, weight, limit = string.match(mode, '^(%a)(%d*)/?(%d*)$')
  if kind == 'p' then return kind, tonumber(weight), tonumber(limit) end
  return kind, 1, math.huge
end

-- Whether a claim of this mode may hold beside the holder.
local function fits(holder, mode)
  if not holder then return true end
  local kind, weight, limit = read_mode(mode)
  if holder ~= MARKERS[kind] then return false end
  if kind == 's' then return true end
  return (tonumber(redis.call('HGET', grants, '#') or 0) or 0) + weight <= limit
end

-- A grant: token, last token, since, mode, holder info; nil if the owner has none.
local function grant_of(owner)
  local text = redis.call('HGET', grants, owner) or ''
  return string.match(text, '^(%d+) (%d+) (%d+) ([sp][%d/]*)\n(.*)$')
end

-- Makes lock, ends and grants live as long as the longest lease. Returns the holder: the marker, or
-- nil if no grant is left; then the lock is free.
local function settle_holders(marker)
  local longest = redis.call('ZRANGE', ends, -1, -1, 'WITHSCORES')[2]
  if not longest then
    redis.call('DEL', name, ends, grants)
    return nil
  end
  local left = whole(math.max(1, tonumber(longest) - now_ms))
  redis.call('PEXPIRE', name, left)
  redis.call('PEXPIRE', ends, left)
  redis.call('PEXPIRE', grants, left)
  return marker
end

local function add_holder(holder, owner, lease, mode, grant)
  local kind, weight = read_mode(mode)
  if not holder then
    -- Before the rest: a full server may refuse this write.
    put(name, MARKERS[kind], lease)
    redis.call('DEL', ends, grants)
  end
  redis.call('ZADD', ends, whole(now_ms + lease), owner)
  redis.call('HSET', grants, owner, grant)
  redis.call('HINCRBY', grants, '#', weight)
  return settle_holders(MARKERS[kind])
end

-- Whether the owner was one of the holders. Settling them is left to the caller.
local function remove_holder(owner)
  if redis.call('ZREM', ends, owner) == 0 then return false end
  local _, _, _, mode = grant_of(owner)
  redis.call('HDEL', grants, owner)
  if redis.call('HGET', grants, '~oldest') == owner then redis.call('HDEL', grants, '~oldest') end
  if mode then
    local _, weight = read_mode(mode)
    redis.call('HINCRBY', grants, '#', -weight)
  end
  return true
end

-- Removes holders whose end has passed. Returns the holder afterwards, and whether any was removed.
-- An end is the last ms in which the grant lives, as with the expiry of a key.
local function drop_expired(marker)
  local dead = redis.call('ZRANGEBYSCORE', ends, '-inf', '(' .. whole(now_ms), 'LIMIT', 0, run_max)
  if #dead == 0 then return marker, false end
  for _, owner in ipairs(dead) do remove_holder(owner) end
  return settle_holders(marker), true
end

-- Grants a claim of this mode, which must fit beside the holder. Returns its token and the holder
-- afterwards.
local function grant(holder, owner, lease, mode, info, size)
  if mode == 'x' then return grant_exclusive(owner, lease, info, size), owner end
  local token = next_token()
  local text = whole(token)
  local record = text .. ' ' .. text .. ' ' .. whole(now_ms) .. ' ' .. mode .. '\n' .. info
  holder = add_holder(holder, owner, lease, mode, record)
  last_token = token
  redis.call('HSET', state, 'token', text, 'row', row)
  remember(lease, token)
  return text, holder
end
