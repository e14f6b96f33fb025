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

-- A plain bucket is one number, which Redis keeps in the least room: its tokens and one, and then in nine digits for how
-- many milliseconds after its moment it expires, and its epoch. Returns tokens, the moment's distance, and the epoch.
local function read_plain_bucket(place, text)
  if #text < 10 or #text > 19 or string.find(text, '%D') then
    garbage(place)
  end
  local rest = tonumber(sub(text, -9))
  local stored_epoch = rest % PLAIN_EPOCHS
  return tonumber(sub(text, 1, -10)) - 1, (rest - stored_epoch) / PLAIN_EPOCHS, stored_epoch
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
