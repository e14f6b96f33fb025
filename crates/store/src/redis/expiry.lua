-- The rest of the expiry by Redis.

-- What has no future is kept for a moment; what has too much, for as long as Redis can count.
local function bounded(at)
  return math.max(now + 1, math.min(at, 9e15))
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
