-- KEYS[1]: the region's state. ARGV: 1 the expected version, 2 the value.
local version = call('HGET', KEYS[1], 'v') or '0'
if version ~= ARGV[1] then
  return {'conflict'}
end
local next_version = string.format('%d', tonumber(version) + 1)
call('HSET', KEYS[1], 'v', next_version, 'd', ARGV[2])
return {'ok', next_version}
