-- === rules and terms ===

-- A part of the budget into `rule`, in the values from `i` on: its kind, and what it is.
local function read_part(rule, i)
  rule.part = A[i]
  if rule.part == BASE then
    rule.units, rule.from = A[i + 1], A[i + 2]
    return i + 3
  end
  if rule.part ~= SHARES then
    return i + 1
  end
  local steps, n = {}, 2 * A[i + 1]
  for k = 1, n do
    steps[k] = A[i + 1 + k]
  end
  rule.shares = steps
  return i + n + 2
end

-- A rule in the values from `i` on: algorithm, limit, burst, its two numbers, `fill_ms`, flags (1: limits depend on the
-- plan; 2: it may go over; 4: what is known decides), its part, and its part of the overdraft. Returns what comes after
-- it, too.
local function read_rule(i)
  local flags = A[i + 6]
  local rule = {
    kind = A[i], limit = A[i + 1], burst = A[i + 2], a = A[i + 3], b = A[i + 4], fill_ms = A[i + 5],
    by_plan = flags % 2 == 1, lenient = flags >= KNOWN, part = 0, flows = {},
  }
  i = read_part(rule, i + 7)
  if flags % 4 >= OVER then
    rule.over = {}
    i = read_part(rule.over, i)
  end
  return rule, i
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
