-- The rest of the expiry by the clock that a test sets.

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
