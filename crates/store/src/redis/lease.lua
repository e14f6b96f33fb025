-- KEYS[1]: the lease. ARGV: 1 who asks for it, 2 for how long.
purge(string.match(KEYS[1], '^(.-{.-})'))
local ends = now + tonumber(ARGV[2])
local holder = call('GET', KEYS[1])
-- One that ends later than any that is taken now was taken by a clock that has stepped back since.
if holder and holder ~= ARGV[1] and deadline_of(KEYS[1]) <= ends then
  return {'ok', '0'}
end
put(KEYS[1], ARGV[1], ends)
return {'ok', '1'}
