-- Meters, as core::meter and core::schedule have them: the same numbers, the same names, in the same order.
-- Numbers are whole, and exact to 2^53. Each algorithm is a table of functions, made when a call first meets it.

local NOTHING, WHOLE, BASE, SHARES = 0, 1, 2, 3
-- Added to the algorithm in the first value of a stored meter: limits are noted, holds follow.
local NOTED, HELD = 8, 16
local DAY_MS = 86400000
-- Months end here: the year 200,000.
local MONTHS_MAX = 198030 * 12
-- Elements of a list or a sorted set that are looked at together.
local PAGE = 64

local function is_count(x)
  return type(x) == 'number' and x >= 0
end

-- === shares ===

-- The share in force at `moment`, of steps `from, ppb, from, ppb, ...`; the first also before it begins.
local function share_at(steps, moment)
  local ppb = steps[2]
  for i = 3, #steps, 2 do
    if steps[i] > moment then
      break
    end
    ppb = steps[i + 1]
  end
  return ppb
end

local function least_share(steps)
  local least = steps[2]
  for i = 4, #steps, 2 do
    least = min(least, steps[i])
  end
  return least
end

local function part_micro(units, ppb)
  local rest = units % 1000
  return (units - rest) / 1000 * ppb + floor(rest * ppb / 1000)
end

local NO_FLOW = {cap = 0, whole = 0, rest = 0, per = 1}

-- What `ppb` parts of a bucket's rate come to.
local function flow_of(rule, ppb)
  local flow = rule.flows[ppb]
  if not flow then
    local in_period = part_micro(rule.limit, ppb)
    if in_period == 0 then
      flow = NO_FLOW
    else
      local per = rule.a
      local whole = floor(in_period / per)
      flow = {cap = part_micro(rule.burst, ppb), whole = whole, rest = in_period - whole * per, per = per}
    end
    rule.flows[ppb] = flow
  end
  return flow
end

-- === rules and terms ===

-- A rule in the values from `i` on: algorithm, limit, burst, its two numbers, `fill_ms`, whether limits depend on the
-- plan, the kind of its part, and the part. Returns what comes after it, too.
local function read_rule(i)
  local rule = {
    kind = A[i], limit = A[i + 1], burst = A[i + 2], a = A[i + 3], b = A[i + 4], fill_ms = A[i + 5],
    by_plan = A[i + 6] == 1, part = A[i + 7], flows = {},
  }
  i = i + 8
  if rule.part == BASE then
    rule.units, rule.from = A[i], A[i + 1]
    return rule, i + 2
  end
  if rule.part ~= SHARES then
    return rule, i
  end
  local steps, n = {}, 2 * A[i]
  for k = 1, n do
    steps[k] = A[i + k]
  end
  rule.shares = steps
  return rule, i + n + 1
end

-- The rules of a call: how many, and then each.
local function read_rules(i)
  local rules, n = {}, A[i]
  i = i + 1
  for k = 1, n do
    rules[k], i = read_rule(i)
  end
  return rules, i
end

-- `1, epoch, own_ppb, from, ppb, ...` or `2, delta`.
local function read_terms(key, text)
  local t = {pcall(decode, text)}
  local n = #t
  if t[1] and t[2] == 2 and n == 3 and type(t[3]) == 'number' then
    return {delta = t[3]}
  end
  if not t[1] or t[2] ~= 1 or n < 6 or n % 2 ~= 0 then
    garbage(key)
  end
  local steps = {}
  for i = 3, n do
    if not is_count(t[i]) then
      garbage(key)
    end
    if i > 4 then
      steps[i - 4] = t[i]
    end
  end
  return {epoch = t[3], own_ppb = t[4], shares = steps}
end

-- What is kept beside the meter of `suffix`: terms, and the version; no version where nothing is kept.
local function read_traded(s, suffix)
  local place = base .. 'T' .. suffix
  s.traded = place
  local fields = read('HMGET', place, 'v', 's', 'n')
  local version, terms, attempts = fields[1], fields[2], fields[3]
  if version or attempts then
    s.version = tonumber(version or '0')
    if not s.version or not tonumber(attempts or '0') then
      garbage(place)
    end
  end
  if terms then
    s.terms = read_terms(place, terms)
  end
end

-- === holds ===

local function held_by(holds)
  local held = 0
  if holds then
    for i = 1, #holds do
      held = held + holds[i].units
    end
  end
  return held
end

local function longest_hold(holds)
  local longest = 0
  if holds then
    for i = 1, #holds do
      longest = max(longest, holds[i].ends - now)
    end
  end
  return longest
end

-- Takes out the holds that are over, in the order of their ends.
local function end_holds(s)
  local over, kept = {}, {}
  for _, hold in ipairs(s.holds) do
    local to = hold.ends <= now and over or kept
    to[#to + 1] = hold
  end
  if #over == 0 then
    return over
  end
  s.holds = kept
  table.sort(over, function(a, b)
    return a.ends < b.ends or (a.ends == b.ends and a.id < b.id)
  end)
  return over
end

-- === the algorithms ===

local make = {}

-- The values of a state are read by `read(s, t, i)`, from t[i] on, which returns what comes after them; `write(s, t)`
-- adds them to t.

make[BUCKET] = function()
  local m = {}

  function m.read(s, t, i)
    s.tokens, s.at = t[i], t[i + 1]
    return i + 2
  end

  function m.write(s, t)
    t[3], t[4] = s.tokens, s.at
  end

  -- `rest * dt / per`, rounded down. Beyond 2^53 by long division, in digits of 17 bits: `per` has at most 35.
  local function part_of(rest, dt, per)
    local product = rest * dt
    if product < EXACT then
      return floor(product / per)
    end
    local quotient, left = 0, 0
    for k = 3, 0, -1 do
      local digit = floor(dt / 131072 ^ k) % 131072
      local value = left * 131072 + rest * digit
      local part = floor(value / per)
      quotient = quotient * 131072 + part
      left = value - part * per
    end
    return quotient
  end

  -- What flows in `dt`, at most `room`, rounded down to a micro-unit.
  local function gain(flow, dt, room)
    local whole = flow.whole * dt
    if whole >= room then
      return room
    end
    return min(whole + part_of(flow.rest, dt, flow.per), room)
  end

  -- `tokens` stored at `from`, settled to `to` step by step, under what is `held`.
  local function flow_along(rule, steps, tokens, from, to, held)
    local n, first = #steps, 1
    for i = 3, n, 2 do
      if steps[i] > from then
        break
      end
      first = i
    end
    for i = first, n, 2 do
      local begins = i == first and from or steps[i]
      if i > first and begins > to then
        break
      end
      local ends = steps[i + 2]
      ends = ends and min(ends, to) or to
      local flow = flow_of(rule, steps[i + 1])
      local room = max(flow.cap - held, 0)
      if tokens > room then
        tokens = room
      end
      tokens = tokens + gain(flow, max(ends - begins, 0), room - tokens)
    end
    return tokens
  end

  -- Settles piece by piece also where a hold runs out: what it held is spent then, and may flow in again.
  local function refill(s, tokens, from, to)
    local holds = s.holds
    if not holds or #holds == 0 then
      return flow_along(s.rule, s.shares, tokens, from, to, 0)
    end
    local ends = {}
    for i = 1, #holds do
      if from < holds[i].ends and holds[i].ends < to then
        ends[#ends + 1] = holds[i].ends
      end
    end
    table.sort(ends)
    ends[#ends + 1] = to
    local moment = from
    for i = 1, #ends do
      local held = 0
      for k = 1, #holds do
        if holds[k].ends > moment then
          held = held + holds[k].units
        end
      end
      tokens = flow_along(s.rule, s.shares, tokens, moment, ends[i], held)
      moment = ends[i]
    end
    return tokens
  end

  function m.settle(s)
    if not inside then
      if not s.stored then
        s.tokens, s.at = 0, now
      end
      return
    end
    local tokens, at
    if s.stored then
      tokens, at = s.tokens, s.old and epoch_began or s.at
    elseif missing_empty_at < 0 then
      -- A meter is kept until it is surely full under the last of its shares, traded or not.
      tokens, at = s.of, now
    else
      tokens, at = 0, missing_empty_at
    end
    local to = max(now, at)
    tokens = s.shares and refill(s, tokens, at, to) or 0
    local room = s.of
    if s.holds then
      end_holds(s)
      room = max(room - held_by(s.holds), 0)
    end
    s.tokens, s.at = min(tokens, room), to
  end

  function m.available(s)
    if inside then
      return s.tokens
    end
    return min(s.tokens, max(s.of - held_by(s.holds), 0))
  end

  function m.charge(s, cost)
    s.tokens = s.tokens - cost
  end

  function m.end_hold(s, hold, release)
    if release then
      s.tokens = s.tokens + hold.units
    end
  end

  function m.reading(s, _, to, n)
    local flow = s.flow
    to[n + 1], to[n + 2] = m.available(s), held_by(s.holds)
    to[n + 3], to[n + 4], to[n + 5], to[n + 6] = flow.cap, flow.whole, flow.rest, flow.per
    return n + 6
  end

  local function fill_ms(flow)
    local rate = flow.whole + flow.rest / flow.per
    if rate <= 0 then
      return 0
    end
    return min(ceil(flow.cap / rate), MAX_TTL_MS) + 1
  end

  -- Until its absence means the same as its presence, under shares that may be about to be in force.
  function m.ttl(s, shares)
    local rule = s.rule
    shares = shares or s.shares
    local begins, fill = 0, 0
    if shares then
      local n = #shares
      begins, fill = shares[n - 1], fill_ms(flow_of(rule, shares[n]))
    end
    return max(begins - now, 0) + max(fill, rule.fill_ms) + longest_hold(s.holds) + max(s.at - now, 0)
  end

  return m
end

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
    s.closed = window_start(s.rule, s.label + 1) <= closed_before or (not s.stored and not inside)
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

-- === what counts units in the share: sliding windows and slots ===

-- Whether a meter that isn't there gives nothing yet: it may have been lost, and what it gave counts for so long.
local function may_be_lost(counts_ms)
  if not inside then
    return true
  end
  return missing_empty_at >= 0 and now < missing_empty_at + counts_ms
end

-- Adds to `m`, which has `total`, `frees` and `ends`, what such algorithms have in common.
local function of_units(m)
  local function counted(s)
    if s.blocked then
      return s.of
    end
    return held_by(s.holds) + m.total(s)
  end

  local function available(s)
    return max(s.of - counted(s), 0)
  end

  local function retry_ms(s, need, there)
    if need > s.of then
      return -1
    end
    if need <= there then
      return 0
    end
    if s.blocked then
      return s.longest_ms
    end
    local at = m.frees(s, need)
    return max(at and at - now or s.longest_ms, 1)
  end

  local function reset_ms(s)
    if s.blocked or (s.holds and #s.holds > 0) then
      return s.longest_ms
    end
    local at = m.ends(s)
    return at and max(at - now, 0) or 0
  end

  function m.reading(s, need, to, n)
    local there = available(s)
    to[n + 1], to[n + 2], to[n + 3], to[n + 4] = there, s.of, retry_ms(s, need, there), reset_ms(s)
    return n + 4
  end

  m.counted, m.available = counted, available
  return m
end

-- The log is a list of `at, units` in the order of time; the newest entry is in the meter itself, after the sum of all
-- and the moment of the oldest.
make[LOG] = function()
  local m = {}

  local function list_of(s)
    return s.base .. 'L' .. s.suffix
  end

  local function entry(list, text)
    local ok, at, units = pcall(decode, text)
    if not ok or not is_count(at) or not is_count(units) then
      garbage(list)
    end
    return at, units
  end

  function m.read(s, t, i)
    s.sum, s.first, s.last, s.last_units = t[i], t[i + 1], t[i + 2], t[i + 3]
    return i + 4
  end

  function m.write(s, t)
    t[3], t[4], t[5], t[6] = s.sum, s.first, s.last, s.last_units
  end

  local function add(s, at, units)
    if s.last_units > 0 and s.last >= at then
      s.last_units = s.last_units + units
    else
      if s.last_units > 0 then
        local pending = s.pending
        if s.listed == 0 and #pending == 0 then
          s.first = s.last
        end
        pending[#pending + 1] = {s.last, s.last_units}
      end
      s.last, s.last_units = at, units
    end
    s.sum = s.sum + units
  end

  -- Drops the entries that are a whole period old.
  local function trim(s)
    local per = s.rule.a
    local list
    while s.listed > 0 and s.first + per <= now do
      list = list or list_of(s)
      local page = read('LRANGE', list, s.dropped, s.dropped + PAGE - 1)
      if #page == 0 then
        garbage(list)
      end
      for i = 1, #page do
        local at, units = entry(list, page[i])
        s.first = at
        if at + per > now then
          break
        end
        s.dropped = s.dropped + 1
        s.listed = s.listed - units
        s.sum = s.sum - units
      end
    end
    if s.listed > 0 then
      return
    end
    local pending = s.pending
    while pending[1] and pending[1][1] + per <= now do
      s.sum = s.sum - table.remove(pending, 1)[2]
    end
    s.first = pending[1] and pending[1][1] or 0
    if not pending[1] and s.last + per <= now then
      s.sum, s.last, s.last_units = 0, 0, 0
    end
  end

  function m.settle(s)
    s.longest_ms = s.rule.a
    s.blocked = not s.stored and may_be_lost(s.rule.a)
    s.pending, s.dropped = {}, 0
    if not s.stored then
      s.sum, s.first, s.last, s.last_units = 0, 0, 0, 0
    end
    -- Units in the list.
    s.listed = s.sum - s.last_units
    if not inside then
      return
    end
    if s.old and s.sum > 0 then
      s.unlist = true
      s.listed, s.first, s.last, s.last_units = 0, 0, epoch_began, s.sum
    end
    if s.holds then
      for _, hold in ipairs(end_holds(s)) do
        add(s, hold.ends, hold.units)
      end
    end
    trim(s)
  end

  function m.total(s)
    return s.sum
  end

  function m.charge(s, cost, held)
    if not held then
      add(s, now, cost)
    end
  end

  function m.end_hold(s, hold, release)
    if not release then
      add(s, now, hold.units)
    end
  end

  function m.frees(s, need)
    local short = max(need + m.counted(s) - s.of, 0)
    local per = s.rule.a
    local at, listed = s.dropped, s.listed
    while listed > 0 do
      local list = list_of(s)
      local page = read('LRANGE', list, at, at + PAGE - 1)
      if #page == 0 then
        garbage(list)
      end
      for i = 1, #page do
        local moment, units = entry(list, page[i])
        short = short - units
        if short <= 0 then
          return moment + per
        end
        listed = listed - units
      end
      at = at + PAGE
    end
    for _, waiting in ipairs(s.pending) do
      short = short - waiting[2]
      if short <= 0 then
        return waiting[1] + per
      end
    end
    if s.last_units > 0 and short <= s.last_units then
      return s.last + per
    end
    return nil
  end

  function m.ends(s)
    return s.last_units > 0 and s.last + s.rule.a or nil
  end

  function m.ttl(s)
    local last = s.last_units > 0 and s.last or now
    return max(last - now, 0) + s.longest_ms + longest_hold(s.holds)
  end

  -- After the meter was written.
  function m.write_rest(s, at)
    local list = list_of(s)
    if s.unlist or not s.stored then
      call('DEL', list)
    elseif s.dropped > 0 then
      call('LTRIM', list, s.dropped, -1)
    end
    for _, waiting in ipairs(s.pending) do
      call('RPUSH', list, encode(waiting[1], waiting[2]))
      s.listed = s.listed + waiting[2]
    end
    s.pending, s.dropped, s.unlist = {}, 0, false
    if s.listed > 0 then
      if at then
        expire(list, at)
      else
        expire_with(list, s.place)
      end
    end
  end

  return of_units(m)
end

-- Of a counter `a` is the period and `b` the number of cells. Counts are newest first.
make[COUNTER] = function()
  local m = {}

  function m.read(s, t, i)
    local n = t[i + 1]
    if not n or n < 1 or n > #t then
      return nil
    end
    local counts = {}
    for k = 1, n do
      counts[k] = t[i + 1 + k]
    end
    s.cell, s.counts = t[i], counts
    return i + 2 + n
  end

  function m.write(s, t)
    local counts = s.counts
    t[3], t[4] = s.cell, #counts
    for k = 1, #counts do
      t[4 + k] = counts[k]
    end
  end

  local function sum(counts)
    local total = 0
    for k = 1, #counts do
      total = total + counts[k]
    end
    return total
  end

  function m.settle(s)
    local per, cells = s.rule.a, s.rule.b
    local length = ceil(per / cells)
    s.length, s.longest_ms = length, 2 * per
    local present = floor(now / length)
    s.blocked = not s.stored and may_be_lost(2 * per)
    local cell, counts = s.cell, s.counts
    if not s.stored then
      cell, counts = present, {0}
    end
    if s.old and inside then
      cell, counts = floor(epoch_began / length), {sum(counts)}
    end
    -- After a step back of the clock the newest cell goes on.
    local newest = max(cell, present)
    if inside then
      local passed = min(newest - cell, cells + 1)
      if passed > 0 then
        local moved = {}
        for k = 1, passed do
          moved[k] = 0
        end
        for k = 1, min(#counts, cells + 1 - passed) do
          moved[passed + k] = counts[k]
        end
        counts = moved
      end
      while #counts > cells + 1 do
        counts[#counts] = nil
      end
    else
      -- When any of it came isn't known, so all of it counts from now on.
      counts = {sum(counts)}
    end
    if cells == 1 then
      -- What several windows of an older epoch put into one cell: more than any limit, and exact when multiplied.
      for k = 1, #counts do
        counts[k] = min(counts[k], floor(EXACT / s.rule.a))
      end
    end
    while #counts > 1 and counts[#counts] == 0 do
      counts[#counts] = nil
    end
    s.cell, s.counts = newest, counts
    if inside and s.holds then
      for _, hold in ipairs(end_holds(s)) do
        counts[1] = counts[1] + hold.units
      end
    end
  end

  function m.total(s)
    local per, counts = s.rule.a, s.counts
    if s.rule.b > 1 or not inside then
      return sum(counts)
    end
    local elapsed = min(max(now - s.cell * s.length, 0), per)
    return counts[1] + ceil((counts[2] or 0) * (per - elapsed) / per)
  end

  function m.charge(s, cost, held)
    if not held then
      s.counts[1] = s.counts[1] + cost
    end
  end

  function m.end_hold(s, hold, release)
    if not release then
      s.counts[1] = s.counts[1] + hold.units
    end
  end

  function m.frees(s, need)
    local per, cells, length, counts = s.rule.a, s.rule.b, s.length, s.counts
    local room = s.of - (held_by(s.holds) + need)
    if room < 0 then
      return nil
    end
    if cells == 1 and inside then
      -- In this cell, and if not there in the next, where all of this one counts as the previous.
      local begins, counted, whole = s.cell * length, counts[2] or 0, room - counts[1]
      if whole < 0 then
        begins, counted, whole = begins + length, counts[1], room
      end
      if counted == 0 then
        return begins
      end
      return begins + max(per - floor(whole * per / counted), 0)
    end
    local left = sum(counts)
    for k = #counts, 1, -1 do
      left = left - counts[k]
      if left <= room then
        return (s.cell + cells + 2 - k) * length
      end
    end
    return nil
  end

  function m.ends(s)
    local counts = s.counts
    for k = 1, #counts do
      if counts[k] > 0 then
        return max(s.cell + s.rule.b + 2 - k, 0) * s.length
      end
    end
    return nil
  end

  function m.ttl(s)
    return max(s.cell * s.length - now, 0) + s.longest_ms + longest_hold(s.holds)
  end

  return of_units(m)
end

-- Slots are a sorted set of ids by their ends, and a hash of units by id for those that aren't one. The meter itself
-- has their sum, their number, and a moment before which none ends.
make[SLOTS] = function()
  local m = {}

  local function set_of(s)
    return s.base .. 'S' .. s.suffix
  end

  local function units_place(s)
    return s.base .. 'W' .. s.suffix
  end

  -- The units of some ids.
  local function units_of(s, ids)
    local place = units_place(s)
    local found = read('HMGET', place, spread(ids))
    for i = 1, #ids do
      found[i] = found[i] and (tonumber(found[i]) or garbage(place)) or 1
    end
    return found
  end

  -- Calls `see(end, units)` for each in the order of ends, until it is done.
  local function each(s, from, to, see)
    local set, at = set_of(s), 0
    while true do
      local page = read('ZRANGEBYSCORE', set, from, to, 'WITHSCORES', 'LIMIT', at, PAGE)
      if #page == 0 then
        return
      end
      local ids = {}
      for i = 1, #page, 2 do
        ids[#ids + 1] = page[i]
      end
      local units = s.weighed and units_of(s, ids)
      for i = 1, #ids do
        if see(tonumber(page[2 * i]), units and units[i] or 1, ids[i]) then
          return
        end
      end
      at = at + PAGE
    end
  end

  function m.read(s, t, i)
    s.sum, s.number, s.first = t[i], t[i + 1], t[i + 2]
    return i + 3
  end

  function m.write(s, t)
    t[3], t[4], t[5] = s.sum, s.number, s.first
  end

  -- Outside the span no slot comes back by itself.
  function m.settle(s)
    local rule = s.rule
    s.of = rule.part == WHOLE and rule.limit or 0
    s.longest_ms = rule.a
    s.blocked = not s.stored and may_be_lost(rule.a)
    if not s.stored then
      s.sum, s.number, s.first = 0, 0, 0
    end
    -- Some have other units than one.
    s.weighed = s.sum ~= s.number
    if not inside or s.number == 0 then
      return
    end
    if s.old then
      -- All go on from the epoch's beginning.
      local ends = epoch_began + rule.a
      if ends <= now then
        s.clear = true
        s.sum, s.number = 0, 0
      else
        s.all_end, s.first = ends, ends
      end
    elseif s.first <= now then
      local over = {}
      each(s, '-inf', now, function(_, units, id)
        over[#over + 1] = id
        s.sum, s.number = s.sum - units, s.number - 1
      end)
      s.over = #over > 0 and over
      local next_end = read('ZRANGEBYSCORE', set_of(s), '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      s.first = tonumber(next_end[2] or '0')
    end
  end

  function m.total(s)
    return s.sum
  end

  -- Changes are made at once: what is asked afterwards is asked of Redis.
  local function tidy(s)
    local set, units = set_of(s), units_place(s)
    if s.clear or not s.stored then
      call('DEL', set, units)
      s.clear = false
    elseif s.over then
      for i = 1, #s.over, PAGE do
        local ids = {spread(s.over, i, min(i + PAGE - 1, #s.over))}
        call('ZREM', set, spread(ids))
        if s.weighed then
          call('HDEL', units, spread(ids))
        end
      end
      s.over = false
    elseif s.all_end then
      local ids = call('ZRANGE', set, 0, -1)
      for i = 1, #ids, PAGE do
        local page = {}
        for k = i, min(i + PAGE - 1, #ids) do
          page[#page + 1] = s.all_end
          page[#page + 1] = ids[k]
        end
        call('ZADD', set, spread(page))
      end
      s.all_end = nil
    end
  end

  local function put_end(s, id, ends)
    call('ZADD', set_of(s), ends, id)
    s.first = s.number <= 1 and ends or min(s.first, ends)
  end

  function m.charge(s, cost, held)
    tidy(s)
    s.sum, s.number = s.sum + cost, s.number + 1
    if cost ~= 1 then
      call('HSET', units_place(s), held.id, cost)
      s.weighed = true
    end
    put_end(s, held.id, held.ends)
  end

  -- Ends the slot `id`; false where it isn't there.
  function m.end_slot(s, id, release)
    if s.number == 0 then
      return false
    end
    local set = set_of(s)
    local ends = tonumber(read('ZSCORE', set, id) or '')
    if not ends or (inside and not s.all_end and ends <= now) then
      return false
    end
    local units = s.weighed and units_of(s, {id})[1] or 1
    tidy(s)
    if not release then
      put_end(s, id, now + s.rule.a)
      return true
    end
    call('ZREM', set, id)
    if s.weighed then
      call('HDEL', units_place(s), id)
    end
    s.sum, s.number = s.sum - units, s.number - 1
    return true
  end

  function m.frees(s, need)
    local short = max(need + s.sum - s.of, 0)
    if s.all_end then
      return s.all_end
    end
    local at
    each(s, s.over and '(' .. now or '-inf', '+inf', function(ends, units)
      short = short - units
      at = ends
      return short <= 0
    end)
    return short <= 0 and at or nil
  end

  function m.ends(s)
    if s.number == 0 then
      return nil
    end
    if s.all_end then
      return s.all_end
    end
    local last = read('ZRANGE', set_of(s), -1, -1, 'WITHSCORES')
    return tonumber(last[2] or '') or garbage(set_of(s))
  end

  function m.ttl(s)
    local ends = m.ends(s)
    return ends and max(ends - now, 0) or 0
  end

  function m.write_rest(s, at)
    if s.number == 0 then
      return
    end
    for _, key in ipairs({set_of(s), s.weighed and units_place(s) or nil}) do
      if at then
        expire(key, at)
      else
        expire_with(key, s.place)
      end
    end
  end

  return of_units(m)
end

-- === a meter settled to now ===

local made = {}

local function algorithm(kind)
  local m = made[kind]
  if not m then
    m = make[kind]()
    made[kind] = m
  end
  return m
end

-- What a stored meter says: algorithm and what else there is, epoch, state; then limits; then holds.
local function read_meter(s)
  local place = s.place
  local text = read('GET', place)
  if not text then
    return
  end
  s.exists = true
  local ok, tag, stored_epoch, tokens, at, more = pcall(decode, text)
  if ok and tag == BUCKET and s.rule.kind == BUCKET and more == nil
    and is_count(stored_epoch) and is_count(tokens) and is_count(at) then
    s.stored, s.epoch, s.tokens, s.at = true, stored_epoch, tokens, at
    return
  end
  local t = {pcall(decode, text)}
  local n = #t
  for i = 2, n do
    if not is_count(t[i]) then
      garbage(place)
    end
  end
  local kind = ok and n > 3 and tag % 8
  if not kind or not make[kind] then
    garbage(place)
  end
  local found = {}
  local i = algorithm(kind).read(found, t, 4)
  if i and tag % 16 >= NOTED then
    s.noted_limit, s.noted_burst = t[i], t[i + 1]
    i = i + 2
  end
  local holds
  if i and tag >= HELD then
    holds = {}
    while i + 2 <= n do
      holds[#holds + 1] = {id = t[i], units = t[i + 1], ends = t[i + 2]}
      i = i + 3
    end
  end
  if i ~= n + 1 then
    garbage(place)
  end
  if kind == s.rule.kind then
    s.stored, s.epoch, s.holds = true, t[3], holds
    for name, value in pairs(found) do
      s[name] = value
    end
  else
    s.other = true
  end
end

local function hold_ms(rule)
  return rule.kind == SLOTS and rule.a or HOLD_MAX_MS
end

-- Settles the meter of `s`: it has its rule, key, label and terms.
local function settle(s)
  local rule = s.rule
  local m = algorithm(rule.kind)
  s.m = m
  read_meter(s)
  if rule.by_plan then
    s.limit, s.burst = rule.limit, rule.burst
  end
  s.old = s.stored and s.epoch ~= epoch
  if inside then
    if s.old and s.holds then
      local ends = epoch_began + hold_ms(rule)
      for _, hold in ipairs(s.holds) do
        hold.ends = ends
      end
    end
    s.epoch = epoch
  elseif not s.stored then
    s.epoch = epoch
  end
  local steps, terms = rule.shares, s.terms
  s.of, s.flow = 0, NO_FLOW
  if steps then
    local ppb
    if terms and terms.shares and terms.epoch == epoch then
      steps = terms.shares
      ppb = terms.own_ppb
    elseif not inside then
      ppb = least_share(steps)
      if terms and terms.shares then
        ppb = min(ppb, terms.own_ppb)
      end
    end
    s.shares = steps
    if inside then
      ppb = share_at(steps, now)
    end
    if rule.kind == BUCKET then
      local flow = flow_of(rule, ppb)
      s.of = flow.cap
      s.flow = inside and flow or {cap = flow.cap, whole = 0, rest = 0, per = 1}
    else
      s.of = floor(part_micro(rule.limit, ppb) / 1000000)
    end
  end
  m.settle(s)
  return m
end

local function can_hold(s)
  return s.rule.kind == SLOTS or not s.holds or #s.holds < HOLDS_MAX
end

-- Takes `cost` out. With `ms` it may be put back under `id` for so long.
local function charge(s, cost, id, ms)
  local kind = s.rule.kind
  local hold
  if ms or kind == SLOTS then
    hold = {id = id, units = cost, ends = now + (ms or s.rule.a)}
  end
  s.m.charge(s, cost, hold)
  if hold and kind ~= SLOTS then
    local holds = s.holds or {}
    holds[#holds + 1] = hold
    s.holds = holds
  end
end

-- Ends the hold `id`. False where there is no such hold (any more).
local function end_hold(s, id, release)
  if s.rule.kind == SLOTS then
    return s.m.end_slot(s, id, release)
  end
  local holds = s.holds or {}
  for i = 1, #holds do
    local hold = holds[i]
    if hold.id == id then
      table.remove(holds, i)
      s.m.end_hold(s, hold, release)
      return true
    end
  end
  return false
end

-- Outside the span a write keeps the time to live; what wasn't there is hardly kept.
local function write_meter(s, shares)
  local m, kind, holds = s.m, s.rule.kind, s.holds
  local at
  if inside then
    at = now + m.ttl(s, shares) + SPAN_MS
  elseif not s.exists then
    at = now + 1
  end
  local held = holds and #holds > 0
  local text
  if kind == BUCKET and not held and not s.limit then
    text = encode(BUCKET, s.epoch, s.tokens, s.at)
  else
    local t = {kind, s.epoch}
    m.write(s, t)
    if s.limit then
      t[1] = t[1] + NOTED
      t[#t + 1] = s.limit
      t[#t + 1] = s.burst
    end
    if held then
      t[1] = t[1] + HELD
      for i = 1, #holds do
        local hold, n = holds[i], #t
        t[n + 1], t[n + 2], t[n + 3] = hold.id, hold.units, hold.ends
      end
    end
    text = encode(spread(t))
  end
  put(s.place, text, at)
  if s.other then
    -- It was of another algorithm.
    for _, aside in ipairs({'L', 'S', 'W'}) do
      if kind ~= SLOTS or aside == 'L' then
        call('DEL', s.base .. aside .. s.suffix)
      end
    end
  end
  if m.write_rest then
    m.write_rest(s, at)
  end
end
