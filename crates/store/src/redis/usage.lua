-- Usage slots, and the feed of those that changed. A slot is a sequence of admitted, refunded, refused; the own actor
-- is `.`.

-- The partitions, by what their names begin with, whose feed changed.
local fed = {}

local function usage_place(key, period)
  return base .. 'U' .. key .. '@' .. period
end

local function feed_member(key, period, actor)
  return key .. ' ' .. period .. ' ' .. actor
end

local function read_slot(place, actor)
  local text = read('HGET', place, actor)
  if not text then
    return nil
  end
  local ok, admitted, refunded, refused, more = pcall(decode, text)
  if not ok or more ~= nil or type(admitted) ~= 'number' or type(refunded) ~= 'number' or type(refused) ~= 'number' then
    garbage(place)
  end
  return admitted, refunded, refused
end

-- `keep_until`: how long the period is to be kept, if this is its first slot.
local function write_slot(place, actor, admitted, refunded, refused, is_new, keep_until)
  call('HSET', place, actor, encode(admitted, refunded, refused))
  if is_new and call('HLEN', place) == 1 then
    expire(place, keep_until)
  end
end

local function note_change(key, period, actor)
  local seq = call('INCR', base .. 'Q')
  call('ZADD', base .. 'F', seq, feed_member(key, period, actor))
  fed[base] = fed[base] or 'changed'
end

-- The feed, its counter and what was acknowledged of it end together.
local function keep_feed()
  for of, what in pairs(fed) do
    if what == 'acknowledged' or not lingers(of .. 'F') then
      linger(of .. 'F')
      linger(of .. 'Q')
      linger(of .. 'C')
    end
  end
end

-- Counts in the own slot at `place`, which says `a, d, r` now, of the period that begins at `start`.
local function count_usage(place, key, start, period_ms, a, d, r, admitted, refunded, refused)
  local keep_until = start + period_ms + RETENTION_MS
  write_slot(place, '.', (a or 0) + admitted, (d or 0) + refunded, (r or 0) + refused, not a, keep_until)
  note_change(key, start, '.')
end
