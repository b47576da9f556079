-- The usual case of release.lua, with the same arguments, which is tried before anything else: the
-- claim holds the lock exclusively and needs no tombstone, and no claim waits. What the state says
-- about the holder stays: it counts only as long as the lock itself names the same owner.
if ARGV[5] == '0' and redis.call('EXISTS', KEYS[3]) == 0 and delete_held(KEYS[1], ARGV[4]) then
  if ARGV[3] ~= '' then redis.pcall(ARGV[1], ARGV[3], '0') end
  return 2
end
