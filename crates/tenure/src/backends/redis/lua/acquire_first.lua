-- Before acquire.lua, with the same arguments: the lock is free.
do
  local token = acquire_free(KEYS[1], KEYS[2], KEYS[3], KEYS[5], ARGV[7], tonumber(ARGV[8]),
    ARGV[10], tonumber(ARGV[4]), tonumber(ARGV[5]) < 0)
  if token then return { 1, token, tonumber(ARGV[8]) } end
end
