-- A clock that a test sets, and expiry by it: what a script touches is first purged of what has expired.

local call = redis.call

local fake_prefix = string.match(KEYS[1], '^(.-){')
local now = tonumber(call('GET', fake_prefix .. '{s}!clock'))
local fake_rest = fake_prefix .. '{s}!rest'

local function deadlines_of(key)
  return string.match(key, '^(.-{.-})') .. '!deadlines'
end

local function purge_by(deadlines)
  local gone = call('ZRANGEBYSCORE', deadlines, '-inf', now)
  for _, key in ipairs(gone) do
    call('DEL', key)
    call('ZREM', deadlines, key)
  end
end

local function purge(tag)
  purge_by(tag .. '!deadlines')
end

local function purge_rest()
  purge_by(fake_rest)
end

local function expire(key, at)
  call('ZADD', deadlines_of(key), at, key)
end

local function put(key, value, at)
  call('SET', key, value)
  if at then
    expire(key, at)
  end
end

local function expire_rest(key, at)
  call('ZADD', fake_rest, at, key)
end

local function put_rest(key, value, at)
  call('SET', key, value)
  expire_rest(key, at)
end

local function expire_with(key, other)
  expire(key, call('ZSCORE', deadlines_of(other), other))
end

local function outlive() end

local function linger() end

local function lingers()
  return true
end
