-- The store's clock, and what every script needs of its expiry. Deadlines are moments.

local call = redis.call

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Redis takes away by itself what has expired.
local function purge() end
local function purge_rest() end

local function deadline_of(key)
  return call('PEXPIRETIME', key)
end

-- Writes until `at`, which is ahead; without it, for as long as the key had.
local function put(key, value, at)
  if at then
    call('SET', key, value, 'PXAT', at)
  else
    call('SET', key, value, 'KEEPTTL')
  end
end
