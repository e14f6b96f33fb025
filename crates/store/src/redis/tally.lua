-- Tallies: how much each actor admitted of a key, as core::tally has them. A tally is a sequence of when it began, units,
-- its cell, and what it said when that and the one before began; the own actor is `.`. They are in the feed of changes.

local function tally_cell(rule)
  local matters = 0
  if rule.kind == BUCKET then
    matters = rule.fill_ms
  elseif rule.kind ~= WINDOW then
    matters = rule.a
  end
  return max(floor(matters / 2), TALLY_CELL_MIN_MS)
end

local function read_tally(s, actor)
  local place = base .. 'H' .. s.suffix
  local text = read('HGET', place, actor)
  if not text then
    return nil
  end
  local t = {pcall(decode, text)}
  if #t ~= 6 or not t[1] then
    garbage(place)
  end
  for i = 2, 6 do
    if not is_count(t[i]) then
      garbage(place)
    end
  end
  return {began = t[2], units = t[3], cell = t[4], at_cell = t[5], at_before = t[6]}
end

local function put_tally(s, actor, t)
  local place, rule = base .. 'H' .. s.suffix, s.rule
  local ttl
  if rule.kind == WINDOW then
    ttl = max(window_start(rule, s.label + 2) - now, 0)
  else
    ttl = 2 * tally_cell(rule) + TALLY_TTL_MS
  end
  call('HSET', place, actor, encode(t.began, t.units, t.cell, t.at_cell, t.at_before))
  expire(place, min(now + ttl + SPAN_MS, 9e15))
  call('ZADD', base .. 'F', call('INCR', base .. 'Q'), s.suffix .. ' ~ ' .. actor)
  fed[base] = true
end

-- Counts what this store's own actor admitted, in the tally that it has.
local function count_tally(s, tally, units)
  local t = tally or {began = now, units = 0, cell = 0, at_cell = 0, at_before = 0}
  local cell = floor(now / tally_cell(s.rule))
  if cell ~= t.cell then
    t.at_before = cell == t.cell + 1 and t.at_cell or t.units
    t.at_cell, t.cell = t.units, cell
  end
  t.units = min(t.units + units, EXACT)
  put_tally(s, '.', t)
end
