-- Reading what is stored: what can't be read is an error that names its key.

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

-- Goes on in a partition, whose record is read once. Whether it is the one that the caller believes, and what it is.
local function enter(partition)
  local found = records[partition]
  if found == nil then
    local tag = prefix .. '{' .. partition .. '}'
    found = read('GET', tag .. 'r')
    records[partition] = found
    bases[partition] = tag .. life
    if found == record then
      purge(tag)
    end
  end
  base = bases[partition]
  return found == record, found
end
