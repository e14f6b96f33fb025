-- === fixed windows ===

-- Howard Hinnant, chrono-Compatible Low-Level Date Algorithms, as core::period has them: days from 1 March of year 0.
local function month_of(day)
  day = day + 719468
  local era = floor(day / 146097)
  day = day % 146097
  local year = floor((day - floor(day / 1460) + floor(day / 36524) - floor(day / 146096)) / 365)
  day = day - (365 * year + floor(year / 4) - floor(year / 100))
  return (era * 400 + year) * 12 + floor((5 * day + 2) / 153) - 23638
end

local function first_day_of(month)
  month = month + 23638
  local year = floor(month / 12)
  month = month % 12
  local era = floor(year / 400)
  year = year % 400
  return era * 146097 + 365 * year + floor(year / 4) - floor(year / 100) + floor((153 * month + 2) / 5) - 719468
end

-- A window's rule has the length of its period and its offset; no length: it is calendar months.
local function window_start(rule, label)
  if rule.a > 0 then
    return max(min(label * rule.a, 2 ^ 64) - rule.b, 0)
  end
  if label > MONTHS_MAX then
    return 2 ^ 64
  end
  return first_day_of(label) * DAY_MS
end

local function window_base(rule, label)
  if rule.part == BASE and window_start(rule, label) >= rule.from then
    return rule.units
  end
  return 0
end

-- The label of the window that `moment` falls in; nil for other algorithms.
local function label_of(rule, moment)
  if rule.kind ~= WINDOW then
    return nil
  end
  if rule.a > 0 then
    return floor((moment + rule.b) / rule.a)
  end
  return month_of(floor(moment / DAY_MS))
end

make[WINDOW] = function()
  local m = {}

  function m.read(s, t, i)
    s.used = t[i]
    return i + 1
  end

  function m.write(s, t)
    t[3] = s.used
  end

  -- No rights once it is closed, and outside the span none where it isn't open yet.
  function m.settle(s)
    s.used = s.used or 0
    s.closed = not s.rule.lenient
      and (window_start(s.rule, s.label + 1) <= closed_before or (not s.stored and not inside))
    if not s.closed then
      local delta = s.terms and s.terms.delta or 0
      s.of = max(window_base(s.rule, s.label) + delta, 0)
    end
    if inside and s.holds then
      end_holds(s)
    end
  end

  function m.available(s)
    return max(s.of - s.used, 0)
  end

  function m.charge(s, cost)
    s.used = s.used + cost
  end

  function m.end_hold(s, hold, release)
    if release then
      s.used = s.used - hold.units
    end
  end

  function m.reading(s, _, to, n)
    to[n + 1], to[n + 2], to[n + 3] = s.label, s.used, s.of
    return n + 3
  end

  -- Past the end of the next label, so that a small step back finds it.
  function m.ttl(s)
    return max(window_start(s.rule, s.label + 2) - now, 0)
  end

  return m
end
