-- Takes in what other actors admitted.
-- ARGV[1] after its head: the partition; the rules; how many; then for each what comes after the kind in the names, the
-- window's label or -1, number of the rule, actor, when its tally began, its units, and those of them that are recent.

local ours, found = enter(A[HEAD + 1])
if not ours then
  return {'fenced', found}
end
local rules, i = read_rules(HEAD + 2)

local function hear(suffix, label, rule, actor, began, units, recent)
  local s = {base = base, place = base .. suffix, suffix = suffix, label = label, rule = rule}
  if not label then
    s.label = label_of(rule, now)
  end
  local last, more = read_tally(s, actor), units
  if last then
    if began < last.began then
      return 0
    elseif began == last.began then
      more = units - last.units
      if more <= 0 then
        return 0
      end
    end
  end
  if not rule.lenient and not rule.over then
    return 0
  end
  local b = slack()
  local known = rule.lenient and s or b.beside(s, 'K', s.rule)
  known.rule = b.known_rule(rule)
  local debit = rule.kind == WINDOW and more or min(more, recent)
  local unit = 1
  if rule.kind == BUCKET then
    unit = 1000000
    debit = min(debit, floor(EXACT / unit)) * unit
  end
  if rule.by_plan then
    -- Whatever plan this node makes of it, it is charged under that of its last request.
    local noted = {base = base, place = known.place, rule = known.rule}
    read_meter(noted)
    if noted.noted_limit then
      known.rule.limit, known.rule.burst = noted.noted_limit, noted.noted_burst
      if rule.kind == WINDOW then
        known.rule.units = noted.noted_limit
      end
    end
  end
  settle(known)
  local beyond = b.debit(known, debit, 0)
  put_tally(s, actor, {began = began, units = units, cell = 0, at_cell = 0, at_before = 0})
  if debit > 0 then
    write_meter(known)
  end
  local rest = beyond % unit
  return (beyond - rest) / unit + (rest > 0 and 1 or 0)
end

local n = A[i]
local reply = {'ok'}
for k = 1, n do
  local label = A[i + 2]
  local beyond = hear(A[i + 1], label >= 0 and label or nil, rules[A[i + 3]], A[i + 4], A[i + 5], A[i + 6], A[i + 7])
  reply[k + 1] = string.format('%d', beyond)
  i = i + 7
end
keep_feed()
return reply
