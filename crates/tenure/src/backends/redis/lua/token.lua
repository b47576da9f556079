-- The token of the exclusive grant that the state describes. A grant without a range, by an earlier
-- version, leaves the field 'first' as it was.
local function own_token(last, first)
  if first and tonumber(last) - tonumber(first) == range_size - 1 then return first end
  return last
end
