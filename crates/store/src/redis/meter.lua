-- Meters, as core::meter and core::schedule have them: the same numbers, the same names, in the same order.
-- Numbers are exact to 2^53, and written by %d: Lua's own way keeps 14 digits.

local match, gmatch, format = string.match, string.gmatch, string.format

-- === schedule ===

-- `from,cap,whole,rest,per` for each step, with `;` between; nil for all else.
local function read_steps(text)
  local steps, n, length = {}, 0, -1
  for from, cap, whole, rest, per in gmatch(text, '(%d+),(%d+),(%d+),(%d+),(%d+)') do
    n = n + 1
    length = length + #from + #cap + #whole + #rest + #per + 5
    steps[n] = {
      from = tonumber(from),
      cap = tonumber(cap),
      whole = tonumber(whole),
      rest = tonumber(rest),
      per = tonumber(per),
    }
    if steps[n].per == 0 then
      return nil
    end
  end
  return length == #text and steps or nil
end

-- The number of the step in force at `moment`; the first is in force also before it begins.
local function step_at(steps, moment)
  local at = 1
  for i = 2, #steps do
    if steps[i].from <= moment then
      at = i
    end
  end
  return at
end

local function least_cap(steps)
  local least = steps[1].cap
  for i = 2, #steps do
    least = min(least, steps[i].cap)
  end
  return least
end

-- What flows in `dt`, at most `room`: exact where the product stays below 2^53, one under where it doesn't.
local function gain(flow, dt, room)
  local whole = flow.whole * dt
  if whole >= room then
    return room
  end
  local product = flow.rest * dt
  local part = floor(product / flow.per)
  if product >= EXACT then
    part = max(part - 1, 0)
  end
  return min(whole + part, room)
end

local function fill_ms(flow)
  local rate = flow.whole + flow.rest / flow.per
  if rate <= 0 then
    return 0
  end
  return min(ceil(flow.cap / rate), MAX_TTL_MS) + 1
end

local function refill_ms(steps)
  local last = steps[#steps]
  return max(last.from - now, 0) + fill_ms(last)
end

-- `tokens` stored at `from`, settled to `to` piece by piece, under what is `held`.
local function flow_along(steps, tokens, from, to, held)
  local first = step_at(steps, from)
  for i = first, #steps do
    local step = steps[i]
    if i > first and step.from > to then
      break
    end
    local begins = i == first and from or step.from
    local ends = steps[i + 1] and min(steps[i + 1].from, to) or to
    local room = max(step.cap - held, 0)
    tokens = min(tokens, room)
    tokens = tokens + gain(step, max(ends - begins, 0), room - tokens)
  end
  return tokens
end

-- === holds ===

local function read_holds(key, text)
  local holds, n, length = {}, 0, 0
  for id, units, ends in gmatch(text, ';(%d+),(%d+),(%d+)') do
    n = n + 1
    length = length + #id + #units + #ends + 3
    holds[n] = {id = tonumber(id), units = tonumber(units), ends = tonumber(ends)}
  end
  if length ~= #text then
    garbage(key)
  end
  return holds
end

local function write_holds(holds)
  local text = ''
  for _, hold in ipairs(holds) do
    text = text .. format(';%d,%d,%d', hold.id, hold.units, hold.ends)
  end
  return text
end

local function held_by(holds)
  local held = 0
  for i = 1, #holds do
    held = held + holds[i].units
  end
  return held
end

-- Those of an older epoch start their longest term again.
local function renew_holds(holds, stored_epoch)
  if stored_epoch ~= epoch then
    for _, hold in ipairs(holds) do
      hold.ends = epoch_began + HOLD_MAX_MS
    end
  end
end

local function unexpired(holds)
  local kept = {}
  for i = 1, #holds do
    if holds[i].ends > now then
      kept[#kept + 1] = holds[i]
    end
  end
  return kept
end

-- Settles piece by piece also where a hold runs out: what it held is spent then, and may flow in again.
local function refill(steps, tokens, from, to, holds)
  if #holds == 0 then
    return flow_along(steps, tokens, from, to, 0)
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
    tokens = flow_along(steps, tokens, moment, ends[i], held)
    moment = ends[i]
  end
  return tokens
end

-- === what is stored ===

-- A bucket is `tokens,at,epoch`, a window `used,epoch`; then `;id,units,until` for each hold.
local function read_meter(key, is_bucket)
  local text = read('GET', key)
  if not text then
    return nil, false
  end
  local tokens, at, stored_epoch, holds = match(text, '^(%d+),(%d+),(%d+)(.*)$')
  if tokens and (holds == '' or match(holds, '^;')) then
    if not is_bucket then
      return nil, true
    end
    return {
      tokens = tonumber(tokens),
      at = tonumber(at),
      epoch = tonumber(stored_epoch),
      holds = read_holds(key, holds),
    }, true
  end
  local used
  used, stored_epoch, holds = match(text, '^(%d+),(%d+)(.*)$')
  if used and (holds == '' or match(holds, '^;')) then
    if is_bucket then
      return nil, true
    end
    return {used = tonumber(used), epoch = tonumber(stored_epoch), holds = read_holds(key, holds)}, true
  end
  garbage(key)
end

-- `b` and a bucket's steps, or `w` and a window's length, base, and from when it has that base.
local function read_rule(text)
  if match(text, '^b') then
    return {steps = read_steps(string.sub(text, 2))}
  end
  local per, units, base_from = match(text, '^w(%d+),(%d+),(%d+)$')
  return {per = tonumber(per), base = tonumber(units), base_from = tonumber(base_from)}
end

-- `b` epoch; own capacity; steps. Or `w` and what a window received less what it gave.
local function read_terms(key, text)
  if not text then
    return nil
  end
  local stored_epoch, own_cap, steps = match(text, '^b(%d+);(%d+);(.+)$')
  if stored_epoch then
    steps = read_steps(steps) or garbage(key)
    return {epoch = tonumber(stored_epoch), own_cap = tonumber(own_cap), steps = steps}
  end
  local delta = match(text, '^w(-?%d+)$')
  if delta then
    return {delta = tonumber(delta)}
  end
  garbage(key)
end

-- === a meter settled to now ===

local function see_bucket(s)
  s.held = held_by(s.holds)
  if inside then
    s.spendable = s.tokens
  else
    s.spendable = min(s.tokens, max(s.flow.cap - s.held, 0))
  end
end

local function settle_bucket(s, rule, terms)
  local stored = s.stored
  local own_cap
  if terms and terms.steps then
    if terms.epoch == epoch then
      s.steps, own_cap = terms.steps, terms.own_cap
    else
      s.steps, own_cap = rule.steps, min(least_cap(rule.steps), terms.own_cap)
    end
  else
    s.steps, own_cap = rule.steps, least_cap(rule.steps)
  end
  if not inside then
    if stored then
      s.tokens, s.at, s.epoch, s.holds = stored.tokens, stored.at, stored.epoch, stored.holds
    else
      s.tokens, s.at, s.epoch, s.holds = 0, now, epoch, {}
    end
    s.flow = {cap = own_cap, whole = 0, rest = 0, per = 1}
    see_bucket(s)
    return
  end
  s.flow = s.steps[step_at(s.steps, now)]
  local tokens, at, holds
  if stored then
    tokens, at, holds = stored.tokens, stored.at, stored.holds
    if stored.epoch ~= epoch then
      at = epoch_began
      renew_holds(holds, stored.epoch)
    end
  elseif missing_empty_at < 0 then
    -- A meter is kept until it is surely full under the last step of its schedule, traded or not.
    tokens, at, holds = s.flow.cap, now, {}
  else
    tokens, at, holds = 0, missing_empty_at, {}
  end
  tokens = refill(s.steps, tokens, at, max(now, at), holds)
  s.at = max(at, now)
  s.epoch = epoch
  s.holds = unexpired(holds)
  s.tokens = min(tokens, max(s.flow.cap - held_by(s.holds), 0))
  see_bucket(s)
end

local function window_base(rule, label)
  return label * rule.per >= rule.base_from and rule.base or 0
end

local function settle_window(s, rule, terms)
  local stored = s.stored
  s.per = rule.per
  s.ends = (s.label + 1) * rule.per
  s.closed = s.ends <= closed_before or (not stored and not inside)
  if s.closed then
    s.rights = 0
  else
    s.rights = max(window_base(rule, s.label) + (terms and terms.delta or 0), 0)
  end
  s.used, s.epoch, s.holds = 0, epoch, {}
  if stored then
    s.used, s.epoch, s.holds = stored.used, stored.epoch, stored.holds
  end
  if inside then
    renew_holds(s.holds, s.epoch)
    s.holds = unexpired(s.holds)
    s.epoch = epoch
  end
end

-- The meter at `place`, under `rule` and the `terms` of the last swap, if there was one.
local function settle(place, label, rule, terms)
  local s = {place = place, label = label}
  s.stored, s.existed = read_meter(place, rule.steps)
  if rule.steps then
    settle_bucket(s, rule, terms)
  else
    settle_window(s, rule, terms)
  end
  return s
end

local function available(s)
  if s.steps then
    return s.spendable
  end
  return max(s.rights - s.used, 0)
end

local function reading(s)
  if s.steps then
    local flow = s.flow
    return format('b %d %d %d %d %d %d', s.spendable, s.held, flow.cap, flow.whole, flow.rest, flow.per)
  end
  return format('w %d %d %d', s.label, s.used, s.rights)
end

local function charge(s, cost, hold)
  if hold then
    s.holds[#s.holds + 1] = hold
  end
  if s.steps then
    s.tokens = s.tokens - cost
    see_bucket(s)
  else
    s.used = s.used + cost
  end
end

local function end_hold(s, id, release)
  for i, hold in ipairs(s.holds) do
    if hold.id == id then
      table.remove(s.holds, i)
      if s.steps then
        s.tokens = release and s.tokens + hold.units or s.tokens
        see_bucket(s)
      else
        s.used = release and s.used - hold.units or s.used
      end
      return true
    end
  end
  return false
end

-- Until a bucket's absence means the same as its presence.
local function bucket_ttl(s, steps)
  local longest = 0
  for _, hold in ipairs(s.holds) do
    longest = max(longest, hold.ends - now)
  end
  return refill_ms(steps) + longest + max(s.at - now, 0) + SPAN_MS
end

local function meter_ttl(s)
  if s.steps then
    return bucket_ttl(s, s.steps)
  end
  return max(s.ends + s.per - now, 0) + SPAN_MS
end

-- Outside the span a write keeps the time to live; what wasn't there is hardly kept.
local function write_meter(s, ttl)
  local text
  if s.steps then
    text = format('%d,%d,%d', s.tokens, s.at, s.epoch)
  else
    text = format('%d,%d', s.used, s.epoch)
  end
  if not inside then
    ttl = nil
    if not s.existed then
      ttl = 1
    end
  end
  put(s.place, text .. write_holds(s.holds), ttl)
end

-- === what is kept beside the meter ===

-- The version of what is kept beside each meter met in this call; false where nothing is.
local kept = {}

-- The terms under which the meter of `suffix` stands, if it is traded.
local function read_traded(suffix)
  local place = base .. 't' .. suffix
  if redis.call('EXISTS', place) == 0 then
    kept[place] = false
    return place, nil
  end
  local fields = read('HMGET', place, 'v', 's', 'n')
  local version = false
  if fields[1] or fields[3] then
    version = tonumber(fields[1] or '0')
    if not version then
      garbage(place)
    end
  end
  kept[place] = version
  return place, read_terms(place, fields[2])
end

-- Counts what was asked of a key that is traded, or was just refused.
local function count_attempts(place, units, refused)
  if not kept[place] and not refused then
    return
  end
  redis.call('HINCRBY', place, 'n', int(units))
  kept[place] = kept[place] or 0
  if kept[place] == 0 then
    expire(place, ATTEMPTS_TTL_MS)
  end
end
