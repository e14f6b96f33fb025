-- Meters, as core::meter and core::schedule have them: the same numbers, the same names, in the same order.
-- Numbers are whole, and exact to 2^53. Each algorithm is a table of functions, made when a call first meets it.

-- Months end here: the year 200,000.
local MONTHS_MAX = 198030 * 12
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
