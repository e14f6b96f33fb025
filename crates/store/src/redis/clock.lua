-- The store's clock and its expiry. Everything else is told the time by these. Deadlines are moments.

local call = redis.call

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Redis takes away by itself what has expired.
local function purge() end
local function purge_rest() end

-- What has no future is kept for a moment; what has too much, for as long as Redis can count.
local function bounded(at)
  return math.max(now + 1, math.min(at, 9e15))
end

-- Writes until `at`; without it, for as long as the key had.
local function put(key, value, at)
  if at then
    call('SET', key, value, 'PXAT', bounded(at))
  else
    call('SET', key, value, 'KEEPTTL')
  end
end

local function expire(key, at)
  call('PEXPIREAT', key, bounded(at))
end

-- For what isn't of one partition.
local expire_rest, put_rest = expire, put

-- `key` goes when `other` does.
local function expire_with(key, other)
  call('PEXPIREAT', key, call('PEXPIRETIME', other))
end

-- What is kept about other keys stays at least until `at`.
local function outlive(key, at)
  call('PEXPIREAT', key, bounded(at), 'NX')
  call('PEXPIREAT', key, bounded(at), 'GT')
end

-- What is kept about a whole partition or region goes so long after it last changed.
local function linger(key)
  call('PEXPIRE', key, RETENTION_MS)
end

-- Whether `key` was to linger so lately that a day makes no difference.
local function lingers(key)
  return call('PTTL', key) > RETENTION_MS - 86400000
end
