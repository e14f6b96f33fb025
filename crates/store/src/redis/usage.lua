-- Usage slots, and the feed of those that changed. A slot is `admitted,refunded,refused`; the own actor is `.`.

local fed = false

local function usage_place(key, period)
  return base .. 'u' .. key .. '@' .. period
end

local function feed_member(key, period, actor)
  return key .. ' ' .. period .. ' ' .. actor
end

local function read_slot(place, actor)
  local text = read('HGET', place, actor)
  if not text then
    return nil
  end
  local admitted, refunded, refused = string.match(text, '^(%d+),(%d+),(%d+)$')
  if not admitted then
    garbage(place)
  end
  return tonumber(admitted), tonumber(refunded), tonumber(refused)
end

-- `keep_for`: how long the period is to be kept, if this is its first slot.
local function write_slot(place, actor, admitted, refunded, refused, is_new, keep_for)
  redis.call('HSET', place, actor, string.format('%d,%d,%d', admitted, refunded, refused))
  if is_new and redis.call('HLEN', place) == 1 then
    expire(place, keep_for)
  end
end

local function note_change(key, period, actor)
  local seq = redis.call('INCR', base .. 'q')
  redis.call('ZADD', base .. 'f', int(seq), feed_member(key, period, actor))
  fed = true
end

-- The feed, its counter and what was acknowledged of it end together.
local function keep_feed()
  if fed then
    linger(base .. 'f')
    linger(base .. 'q')
    linger(base .. 'c')
  end
end

-- Counts in the own slot of the period, of length `period_ms`, that `moment` falls in.
local function count_usage(key, moment, period_ms, admitted, refunded, refused)
  local start = moment - moment % period_ms
  local period = int(start)
  local place = usage_place(key, period)
  local a, d, r = read_slot(place, '.')
  local keep_for = start + period_ms + RETENTION_MS - now
  write_slot(place, '.', (a or 0) + admitted, (d or 0) + refunded, (r or 0) + refused, not a, keep_for)
  note_change(key, period, '.')
end
