-- Requests, each decided as one: all of its charges or none. They are decided in order, and each by itself: one that
-- meets something unreadable, or that the server won't write, takes no other with it.
-- This is the whole of it; `fast.lua` decides what is plain without it.

-- === members of a pool, as core::meter::pool has them ===

local function part(total, weight, weights)
  local rest = total % weights
  return (total - rest) / weights * weight + floor(rest * weight / weights)
end

-- `tokens`, and for each member its name, weight, credit, and when it last asked.
local function read_pool(place)
  local text = read('GET', place)
  if not text then
    return {tokens = 0}
  end
  local t = {pcall(decode, text)}
  if not t[1] or not is_count(t[2]) or (#t - 2) % 4 ~= 0 then
    garbage(place)
  end
  local pool = {tokens = t[2]}
  for i = 3, #t, 4 do
    if type(t[i]) ~= 'string' or not is_count(t[i + 1]) or not is_count(t[i + 2]) or not is_count(t[i + 3]) then
      garbage(place)
    end
    pool[#pool + 1] = {name = t[i], weight = t[i + 1], credit = t[i + 2], seen = t[i + 3]}
  end
  return pool
end

-- Deals what came in, by weight, to those who have room.
local function deal(pool, came)
  local left = came
  for _ = 1, 3 do
    local weights, open = 0, {}
    for i = 1, #pool do
      local m = pool[i]
      if m.credit < m.cap then
        weights = weights + m.weight
        open[#open + 1] = m
      end
    end
    if weights == 0 or left == 0 then
      return
    end
    local round = left
    for i = 1, #open do
      local m = open[i]
      local dealt = min(part(round, m.weight, weights), m.cap - m.credit)
      m.credit = m.credit + dealt
      left = left - dealt
    end
  end
end

-- The pool as its member finds it, in a bucket of capacity `cap` that has `tokens` now.
local function settle_pool(stored, name, weight, tokens, cap)
  local before = stored.tokens
  if #stored == 0 and before == 0 then
    before = tokens
  end
  local pool, own, weights = {}, nil, 0
  for i = 1, #stored do
    local m = stored[i]
    if m.seen + MEMBER_IDLE_MS > now or m.name == name then
      pool[#pool + 1] = m
      if m.name == name then
        own = m
      end
    end
  end
  if own then
    own.weight, own.seen = weight, max(own.seen, now)
  elseif #pool < MEMBERS_MAX then
    own = {name = name, weight = weight, credit = 0, seen = now}
    pool[#pool + 1] = own
  end
  for i = 1, #pool do
    weights = weights + pool[i].weight
  end
  for i = 1, #pool do
    local m = pool[i]
    m.cap = part(cap, m.weight, weights)
    m.credit = min(m.credit, m.cap)
  end
  deal(pool, max(tokens - before, 0))
  -- Credits are never more than the tokens that are there: the last to come gives way first.
  local left = tokens
  for i = 1, #pool do
    local m = pool[i]
    m.credit = min(m.credit, left)
    left = left - m.credit
  end
  pool.tokens, pool.own = tokens, own
  return pool
end

local function pool_available(pool)
  local kept = 0
  for i = 1, #pool do
    kept = kept + pool[i].credit
  end
  return pool.tokens - kept + (pool.own and pool.own.credit or 0)
end

local function write_pool(place, pool)
  local t = {pool.tokens}
  for i = 1, #pool do
    local m, n = pool[i], #t
    t[n + 1], t[n + 2], t[n + 3], t[n + 4] = m.name, m.weight, m.credit, m.seen
  end
  put(place, encode(spread(t)), now + MEMBER_IDLE_MS)
end

-- === one request ===

local rules = read_rules(HEAD + 1)

-- What a charge, in the values from `i` on, meets. Returns what comes after it, too.
local function ask(i, mode)
  local key, rule = A[i], rules[A[i + 1]]
  local cost, flags = A[i + 2], A[i + 7]
  local label = label_of(rule, now)
  local suffix = label and key .. '#' .. label or key
  local s = {
    base = base, place = base .. suffix, suffix = suffix, label = label, rule = rule,
    key = key, cost = cost, units = A[i + 3], denied = A[i + 5], shadow = flags % 2 >= SHADOW,
    -- What is set later, so that the table has room for it at once.
    m = false, exists = false, stored = false, old = false, epoch = 0, holds = false, traded = false, version = false,
    terms = false, of = 0, flow = false, shares = false, need = 0, fits = false, usage = false, period_ms = 0,
    start = 0, longest_ms = 0, blocked = false, overdrawn = 0,
  }
  local reserve_ppm, period_ms = A[i + 4], A[i + 6]
  i = i + 8
  if rule.kind ~= SLOTS then
    read_traded(s, suffix)
  end
  local m = settle(s)
  local available, of = m.available(s), s.of
  local fits = true
  if rule.over then
    slack().settle(s)
    of = slack().of(s)
  end
  if (rule.over or rule.lenient) and mode == CHARGE then
    s.is_told, s.tally = true, read_tally(s, '.')
  end
  if flags % 4 >= NEWCOMERS then
    local most = A[i + 1]
    s.newcomers = A[i] .. '#' .. floor(now / NEWCOMERS_MS)
    i = i + 2
    -- Who was here in the window before isn't new in this one.
    s.is_new = not s.exists
    if s.is_new and label and label > 0 then
      s.is_new = call('EXISTS', base .. key .. '#' .. (label - 1)) == 0
    end
    if cost > 0 and s.is_new then
      local found = read('GET', s.newcomers)
      s.crowded = (found and (tonumber(found) or garbage(s.newcomers)) or 0) >= most
      fits = not s.crowded
    end
  end
  if flags % 8 >= MEMBER then
    s.pool_place = base .. 'P' .. suffix
    s.pool = settle_pool(read_pool(s.pool_place), A[i], A[i + 1], available, s.of)
    i = i + 2
  end
  -- What its own rights have for this request, and what there is with the overdraft.
  s.rights = s.pool and min(available, pool_available(s.pool)) or available
  s.available = s.rights
  if rule.over then
    available = slack().available(s, available)
    s.available = slack().available(s, s.rights)
  end
  local need = cost
  if cost > 0 then
    if reserve_ppm > 0 then
      need = cost + ceil(of * reserve_ppm / 1000000)
    end
    fits = fits and need <= available and cost <= s.available and (mode ~= HOLD or can_hold(s))
  else
    fits = true
  end
  s.need, s.fits = need, fits
  -- All that has to be read is read before anything is written.
  if mode ~= PEEK and period_ms > 0 then
    s.period_ms, s.start = period_ms, now - now % period_ms
    s.usage = usage_place(key, s.start)
    s.admitted, s.refunded, s.refused = read_slot(s.usage, '.')
  end
  return s, i
end

-- Counts what was asked for, and what came of it.
local function count(s, mode, charged)
  local attempts, refused = s.denied, s.denied
  -- Of a key that there is no room for nothing is kept.
  if mode ~= NOTE and not s.crowded then
    attempts = attempts + s.units
    if not s.fits then
      refused = refused + s.units
    end
  end
  local part_of = s.rule.part
  if attempts > 0 and (s.version or refused > 0 or s.overdrawn > 0) and part_of ~= NOTHING and part_of ~= WHOLE then
    call('HINCRBY', s.traded, 'n', attempts)
    if not s.version or s.version == 0 then
      expire(s.traded, now + ATTEMPTS_TTL_MS)
    end
  end
  if s.usage then
    local admitted = charged and s.units or 0
    if admitted > 0 or refused > 0 then
      count_usage(s.usage, s.key, s.start, s.period_ms, s.admitted, s.refunded, s.refused, admitted, 0, refused)
    end
  end
end

-- Decides the request in the values from `i` on.
local function decide(i)
  local ours, found = enter(A[i])
  if not ours then
    out[n + 1], out[n + 2] = FENCED, found
    n = n + 2
    return
  end
  if not decides then
    n = n + 1
    out[n] = OUTSIDE
    return
  end
  purge_rest()
  local id, mode, hold_ms = A[i + 1], A[i + 2], nil
  if mode == HOLD then
    hold_ms = A[i + 3]
  end
  local name, content, others
  if A[i + 4] == 1 then
    name, content, others = A[i + 5], A[i + 6], A[i + 7]
    i = i + 3
    local known = read('GET', name)
    if known then
      if sub(known, 1, #content) ~= content then
        n = n + 1
        out[n] = REUSED
        return
      end
      out[n + 1], out[n + 2] = REPLAYED, known
      n = n + 2
      return
    end
  end
  local charges, asked, admitted = A[i + 5], {}, true
  i = i + 6
  for k = 1, charges do
    local s
    s, i = ask(i, mode)
    asked[k] = s
    admitted = admitted and (s.fits or s.shadow)
  end
  local begins = n
  out[n + 1], out[n + 2], out[n + 3] = DECIDED, admitted and 1 or 0, charges
  n = n + 3
  local consumes = mode == CHARGE or mode == HOLD
  for k = 1, charges do
    local s = asked[k]
    local m, pool = s.m, s.pool
    local charged = admitted and consumes and s.fits and s.cost > 0
    if charged then
      local within = min(s.cost, s.rights)
      if within > 0 then
        charge(s, within, id, hold_ms)
      end
      if pool then
        pool.tokens = pool.tokens - within
        local own = pool.own
        if own then
          own.credit = own.credit - min(own.credit, within)
        end
      end
      write_meter(s)
      s.overdrawn = s.cost - within
      if s.overdraft then
        slack().charge(s, s.overdrawn, id, hold_ms)
      end
      if s.newcomers and s.is_new then
        call('INCR', s.newcomers)
        expire_rest(s.newcomers, now + 2 * NEWCOMERS_MS)
      end
    end
    if pool and consumes then
      write_pool(s.pool_place, pool)
    end
    local kind = s.rule.kind
    n = n + 1
    out[n] = kind * 4 + (s.crowded and 2 or 0) + (s.fits and 1 or 0) + (s.overdrawn > 0 and OVERDRAWN or 0)
    local at = n
    n = m.reading(s, s.need, out, n)
    if s.overdraft then
      local rights = m.available(s)
      rights = pool and min(rights, pool_available(pool)) or rights
      slack().put_in(s, out, at, slack().available(s, rights))
    elseif pool and kind == BUCKET then
      out[at + 1] = min(out[at + 1], pool_available(pool))
    end
    if s.overdrawn > 0 then
      n = n + 1
      out[n] = s.overdrawn
    end
    if mode ~= PEEK then
      count(s, mode, charged)
    end
    if charged and s.is_told and s.units > 0 then
      count_tally(s, s.tally, s.units)
    end
  end
  if name and admitted then
    local again = {now, others}
    for k = begins + 2, n do
      again[#again + 1] = out[k]
    end
    put_rest(name, content .. encode(again), now + REQUEST_TTL_MS)
  end
end

return decide
