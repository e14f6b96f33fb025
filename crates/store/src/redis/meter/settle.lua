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
  local first = string.byte(text)
  if first and first >= DIGIT_0 and first <= DIGIT_9 then
    local tokens, distance, stored_epoch = read_plain_bucket(place, text)
    local deadline = deadline_of(place)
    if deadline < distance or tokens < 0 then
      garbage(place)
    end
    if s.rule.kind == BUCKET then
      s.stored, s.epoch, s.tokens, s.at, s.distance = true, stored_epoch, tokens, deadline - distance, distance
    end
    return
  end
  local t = {pcall(decode, text)}
  local n = #t
  for i = 2, n do
    if not is_count(t[i]) then
      garbage(place)
    end
  end
  local tag = t[1] and n > 3 and t[2]
  local kind = tag and tag % 8
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
  end
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
  if rule.lenient then
    s.terms = nil
    -- What is known by a clock that stepped, or may have, is doubted; units of a window have no time.
    if s.stored and (s.old or not inside) and rule.kind ~= WINDOW then
      s.stored, s.old, s.holds, s.distance = false, false, nil, nil
    end
  end
  -- A bucket goes on from where it is charged, in the span or not.
  if inside or rule.kind == BUCKET then
    if s.old and s.holds then
      local ends = epoch_began + HOLD_MAX_MS
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
    s.ppb = ppb
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

local can_hold
function can_hold(s)
  return (s.rule.kind == SLOTS or not s.holds or #s.holds < HOLDS_MAX)
    and (not s.overdraft or can_hold(s.overdraft) and can_hold(s.known))
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

-- Outside the span a write keeps the time to live, which that of a bucket is the least of; what wasn't there is hardly kept.
local function write_meter(s, shares)
  local m, kind, holds = s.m, s.rule.kind, s.holds
  if s.rule.lenient and not inside and kind ~= WINDOW then
    return
  end
  local at
  if inside then
    -- What has too much future is kept for as long as Redis can count.
    at = min(now + m.ttl(s, shares) + SPAN_MS, 9e15)
  elseif kind == BUCKET then
    at = min(max(now + m.ttl(s, shares) + SPAN_MS, s.exists and deadline_of(s.place) or 0), 9e15)
  elseif not s.exists then
    at = now + 1
  end
  local held = holds and #holds > 0
  local text
  if kind == BUCKET and not held and not s.limit then
    -- Without `at` it keeps its deadline, and its moment.
    local distance = at and at - s.at or s.distance
    if distance and distance < PLAIN_DISTANCES and s.epoch < PLAIN_EPOCHS and s.tokens < PLAIN_TOKENS then
      text = (s.tokens + 1) .. string.format('%09d', distance * PLAIN_EPOCHS + s.epoch)
    else
      text = encode(BUCKET, s.epoch, s.tokens, s.at)
    end
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
  if m.write_rest then
    m.write_rest(s, at)
  end
end
