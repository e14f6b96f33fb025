-- A clock that a test sets, and expiry by it: what a script touches is first purged of what has expired.

local function int(x)
  return string.format('%d', x)
end

local fake_prefix, fake_tag = string.match(KEYS[1], '^(.-)({.-})')

local function clock()
  return tonumber(redis.call('GET', fake_prefix .. '{s}!clock'))
end

local fake_now = clock()
local fake_deadlines = fake_prefix .. fake_tag .. '!deadlines'

local function purge()
  local gone = redis.call('ZRANGEBYSCORE', fake_deadlines, '-inf', int(fake_now))
  for _, key in ipairs(gone) do
    redis.call('DEL', key)
    redis.call('ZREM', fake_deadlines, key)
  end
end

local function expire(key, ttl)
  redis.call('ZADD', fake_deadlines, int(fake_now + ttl), key)
end

local function put(key, value, ttl)
  redis.call('SET', key, value)
  if ttl then
    expire(key, ttl)
  end
end

local function outlive() end

local function linger() end
