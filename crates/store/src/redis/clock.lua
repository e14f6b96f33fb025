-- The store's clock and its expiry. Everything else is told the time by these.

local function int(x)
  return string.format('%d', x)
end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Redis takes away by itself what has expired.
local function purge() end

local function term(ttl)
  return int(math.max(1, math.min(ttl, 1e15)))
end

-- Writes for `ttl` milliseconds; without one, for as long as the key had.
local function put(key, value, ttl)
  if ttl then
    redis.call('SET', key, value, 'PX', term(ttl))
  else
    redis.call('SET', key, value, 'KEEPTTL')
  end
end

local function expire(key, ttl)
  redis.call('PEXPIRE', key, term(ttl))
end

-- What is kept about other keys stays for at least `ttl` from now.
local function outlive(key, ttl)
  redis.call('PEXPIRE', key, term(ttl), 'NX')
  redis.call('PEXPIRE', key, term(ttl), 'GT')
end

-- What is kept about a whole partition or region goes so long after it last changed.
local function linger(key)
  redis.call('PEXPIRE', key, int(RETENTION_MS))
end
