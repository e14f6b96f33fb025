-- KEYS[1]: the marks of a life. ARGV: 1 the actor, 2 up to when its usage is merged.
local mark = call('HGET', KEYS[1], ARGV[1])
if not mark or tonumber(ARGV[2]) > tonumber(mark) then
  call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
linger(KEYS[1])
return {'ok'}
