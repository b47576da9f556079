-- Before acquire.lua, with the same arguments: the lock is free.
do
  local ttl = tonumber(ARGV[5])
  local token = acquire_free(KEYS[1], KEYS[2], KEYS[3], KEYS[5], ARGV[4], ttl, ARGV[7])
  if token then return { 1, token, ttl } end
end
