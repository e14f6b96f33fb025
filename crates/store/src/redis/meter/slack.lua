-- === what a tolerance comes to, as core::meter::slack has it ===

local slack_made

local function slack()
  if slack_made then
    return slack_made
  end
  local b = {}

  local function rule_of(rule, part)
    local copy = {
      kind = rule.kind, limit = rule.limit, burst = rule.burst, a = rule.a, b = rule.b, fill_ms = rule.fill_ms,
      by_plan = rule.by_plan, part = part.part, units = part.units, from = part.from, shares = part.shares, flows = {},
    }
    return copy
  end

  -- The rule of what is known of everybody's usage.
  function b.known_rule(rule)
    local part = {part = SHARES, shares = {0, PPB}}
    if rule.kind == WINDOW then
      part = {part = BASE, units = rule.limit, from = 0}
    end
    local known = rule_of(rule, part)
    known.lenient = true
    return known
  end

  -- The meter that stands beside that of `s`.
  function b.beside(s, letter, rule)
    return {
      base = s.base, place = s.base .. letter .. s.suffix, suffix = letter .. s.suffix, label = s.label, rule = rule,
    }
  end

  function b.settle(s)
    local rule = s.rule
    rule.overdraft_rule = rule.overdraft_rule or rule_of(rule, rule.over)
    rule.known_rule = rule.known_rule or b.known_rule(rule)
    s.overdraft = b.beside(s, 'O', rule.overdraft_rule)
    s.known = b.beside(s, 'K', rule.known_rule)
    settle(s.overdraft)
    settle(s.known)
  end

  -- What can be charged in all where `rights` are there.
  function b.available(s, rights)
    local overdraft, known = s.overdraft, s.known
    return max(rights, min(rights + overdraft.m.available(overdraft), known.m.available(known)))
  end

  local function ppb_of(s)
    return min((s.ppb or 0) + (s.overdraft.ppb or 0), PPB)
  end

  -- What is in force with the overdraft.
  function b.of(s)
    local kind = s.rule.kind
    if kind == WINDOW then
      return s.of + s.overdraft.of
    elseif kind == BUCKET then
      return flow_of(s.rule, ppb_of(s)).cap
    end
    return floor(part_micro(s.rule.limit, ppb_of(s)) / 1000000)
  end

  -- Takes `units` out of what is known, as far as they are there. Returns what wasn't.
  function b.debit(known, units, id, hold_ms)
    local taken = min(units, known.m.available(known))
    if taken > 0 then
      charge(known, taken, id, hold_ms)
    end
    return units - taken
  end

  -- Charges beside the meter what was admitted.
  function b.charge(s, overdrawn, id, hold_ms)
    if overdrawn > 0 then
      charge(s.overdraft, overdrawn, id, hold_ms)
      write_meter(s.overdraft)
    end
    b.debit(s.known, s.cost, id, hold_ms)
    write_meter(s.known)
  end

  -- Puts into a meter's reading, which stands after `to[at]`, what can be charged in all.
  function b.put_in(s, to, at, available)
    local kind, of = s.rule.kind, b.of(s)
    if kind == WINDOW then
      to[at + 2], to[at + 3] = max(of - available, 0), max(of, available)
    elseif kind == BUCKET then
      local flow = flow_of(s.rule, ppb_of(s))
      to[at + 1], to[at + 3] = available, flow.cap
      to[at + 4], to[at + 5], to[at + 6] = 0, 0, 1
      if inside then
        to[at + 4], to[at + 5], to[at + 6] = flow.whole, flow.rest, flow.per
      end
    else
      to[at + 1], to[at + 2] = available, of
      if s.need <= available then
        to[at + 3] = 0
      end
    end
  end

  -- Ends a hold beside the meter; whether any of it was drawn on the overdraft.
  function b.end_hold(s, id, release)
    local overdraft, known = s.overdraft, s.known
    overdraft.limit, overdraft.burst = overdraft.noted_limit, overdraft.noted_burst
    known.limit, known.burst = known.noted_limit, known.noted_burst
    local found = end_hold(overdraft, id, release)
    if found then
      write_meter(overdraft)
    end
    if end_hold(known, id, release) then
      write_meter(known)
    end
    return found
  end

  slack_made = b
  return b
end
