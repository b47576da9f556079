-- Many claims in one script: each is acquired or released as by a script of its own, whose text is
-- the body of `acquire` or `release`.
--
-- Each has a response of its own, in the order of the claims. An error of one is its response, and
-- stops no other: those before it have taken effect.
--
-- KEYS: seven for each claim. ARGV: for each claim 'a' (exclusive), 'm' (any other acquire) or 'r',
-- and what acquire.lua or release.lua reads.
local responses, at = {}, 1
for first = 1, #KEYS, 7 do
  local kind, run, count = ARGV[at], acquire, 7
  if kind == 'r' then
    run, count = release, 5
  elseif kind == 'm' then
    count = 9
  end
  local keys = { unpack(KEYS, first, first + 6) }
  local fine, response = pcall(run, keys, { unpack(ARGV, at + 1, at + count) })
  if not fine then
    -- A table since Redis 7, and a text before.
    response = { err = type(response) == 'table' and response.err or 'ERR ' .. tostring(response) }
  end
  responses[#responses + 1] = response
  at = at + 1 + count
end
return responses
