-- Checks a token at a fence: raises the highest one seen, or returns the error that the script has
-- to return. Tokens are compared as text, since a number of Lua is exact only up to 2^53.
-- A week after the last admission the fence is forgotten.
local function tenure_admit(fence, token)
  local number = '^[1-9]%d*$'
  if #token > 19 or not string.find(token, number) then
    return redis.error_reply('FENCEGARBAGE ' .. token)
  end
  local seen = redis.call('GET', fence)
  if seen and (#seen > 19 or not string.find(seen, number)) then
    return redis.error_reply('FENCEGARBAGE ' .. seen)
  end
  if seen and (#seen > #token or (#seen == #token and seen > token)) then
    return redis.error_reply('FENCESTALE ' .. seen)
  end
  redis.call('SET', fence, token, 'PX', 604800000)
end
