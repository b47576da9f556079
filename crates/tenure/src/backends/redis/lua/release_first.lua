-- Before release.lua, with the same arguments: the claim holds the lock, and needs no tombstone.
if ARGV[5] == '0' and release_held(KEYS[1], KEYS[3], ARGV[4], ARGV[1], ARGV[3]) then return 2 end
