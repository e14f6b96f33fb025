-- What every fenced script begins with.
-- KEYS[1]: the partition's record. ARGV: 1 the record that the caller believes, 2 and 3 the span, 4 the epoch,
-- 5 when it began, 6 when a missing rate key was empty (-1: it was full), 7 before when windows are closed.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local now = clock()
local found = redis.call('GET', KEYS[1])
if found ~= ARGV[1] then
  return {'fenced', found}
end
purge()

local base = string.sub(KEYS[1], 1, -2) .. string.sub(ARGV[1], 1, 8)
local inside = tonumber(ARGV[2]) <= now and now <= tonumber(ARGV[3])
local epoch = tonumber(ARGV[4])
local epoch_began = tonumber(ARGV[5])
local missing_empty_at = tonumber(ARGV[6])
local closed_before = tonumber(ARGV[7])


local function garbage(key)
  error('unreadable value in ' .. key, 0)
end

-- One read, whose failure names the key.
local function read(command, key, ...)
  local value = redis.pcall(command, key, ...)
  if type(value) == 'table' and value.err then
    garbage(key)
  end
  return value
end
