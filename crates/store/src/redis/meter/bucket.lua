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
        s.tokens, s.at = s.rule.lenient and s.of or 0, now
      end
      -- Nothing flows; nor will it for the time before, which would give back what is taken now.
      s.at = max(s.old and epoch_began or s.at, now)
      return
    end
    local tokens, at
    if s.stored then
      tokens, at = s.tokens, s.old and epoch_began or s.at
    elseif missing_empty_at < 0 or s.rule.lenient then
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
