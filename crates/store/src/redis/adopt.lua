-- KEYS[1]: the region's state. ARGV: 1 its expected version, 2 the prefix of all names, 3 the record.
if call('HGET', KEYS[1], 'v') ~= ARGV[1] then
  return {'conflict'}
end
for partition = 0, 255 do
  call('SET', string.format('%s{%02x}r', ARGV[2], partition), ARGV[3])
end
return {'ok'}
