-- Checks a token at a fence: raises the highest one seen, or returns the error that the script has
-- to return. `tenure_admit` is for a writer, `tenure_admit_shared` for a reader.
-- The fence is the highest token of a writer (0: none yet), and after a `;` that of a reader, if
-- there was one. Tokens are compared as text, since a number of Lua is exact only up to 2^53.
-- A week after the last admission the fence is forgotten.
local function tenure_is_token(text)
  return #text <= 19 and string.find(text, '^[1-9]%d*$')
end

local function tenure_is_above(one, other)
  return #one > #other or (#one == #other and one > other)
end

-- Returns the numbers of a writer and of a reader, or an error.
local function tenure_seen(fence, token)
  if not tenure_is_token(token) then
    return nil, nil, redis.error_reply('FENCEGARBAGE ' .. token)
  end
  local text = redis.call('GET', fence)
  if not text then return '0', '0' end
  local writer, reader = string.match(text, '^(%d+);(%d+)$')
  if reader and tenure_is_token(reader) and (writer == '0' or tenure_is_token(writer)) then
    return writer, reader
  end
  if tenure_is_token(text) then return text, '0' end
  return nil, nil, redis.error_reply('FENCEGARBAGE ' .. text)
end

local function tenure_keep(fence, writer, reader)
  local text = writer
  if reader ~= '0' then text = writer .. ';' .. reader end
  redis.call('SET', fence, text, 'PX', 604800000)
end

local function tenure_admit(fence, token)
  local writer, reader, garbage = tenure_seen(fence, token)
  if garbage then return garbage end
  if tenure_is_above(reader, token) and tenure_is_above(reader, writer) then
    return redis.error_reply('FENCESTALESHARED ' .. reader)
  end
  if tenure_is_above(writer, token) then
    return redis.error_reply('FENCESTALE ' .. writer)
  end
  tenure_keep(fence, token, reader)
end

local function tenure_admit_shared(fence, token)
  local writer, reader, garbage = tenure_seen(fence, token)
  if garbage then return garbage end
  if tenure_is_above(writer, token) then
    return redis.error_reply('FENCESTALE ' .. writer)
  end
  if tenure_is_above(token, reader) then reader = token end
  tenure_keep(fence, writer, reader)
end
