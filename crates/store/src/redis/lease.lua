-- KEYS[1]: the lease. ARGV: 1 who asks for it, 2 for how long.
purge(string.match(KEYS[1], '^(.-{.-})'))
local holder = call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return {'ok', '0'}
end
put(KEYS[1], ARGV[1], now + tonumber(ARGV[2]))
return {'ok', '1'}
