-- Ends the holds of one request. What is no longer there is left alone.
-- ARGV[1] after its head: the partition; the rules; the hold's id, when it was laid, whether its units come back (1),
-- how many charges; then for each its key, number of the rule, units and usage period (0: not counted).

local ours, found = enter(A[HEAD + 1])
if not ours then
  return {'fenced', found}
end
local rules, i = read_rules(HEAD + 2)
local id, laid_at, release, charges = A[i], A[i + 1], A[i + 2] == 1, A[i + 3]

local reply = {'ok'}
for k = 1, charges do
  i = i + 4
  local key, rule, units, period_ms = A[i], rules[A[i + 1]], A[i + 2], A[i + 3]
  local label = label_of(rule, laid_at)
  local suffix = label and string.format('%s#%d', key, label) or key
  local s = {base = base, place = base .. suffix, suffix = suffix, label = label, rule = rule}
  local ended = false
  if call('EXISTS', s.place) == 1 then
    read_traded(s, suffix)
    settle(s)
    local tally
    if rule.over then
      slack().settle(s)
    end
    if rule.over or rule.lenient then
      tally = read_tally(s, '.')
    end
    -- It was charged under these limits, whatever this node makes of the plan now.
    s.limit, s.burst = s.noted_limit, s.noted_burst
    ended = end_hold(s, id, release)
    if s.overdraft then
      ended = slack().end_hold(s, id, release) or ended
    end
    if ended then
      if not release and (rule.over or rule.lenient) and units > 0 then
        count_tally(s, tally, units)
      end
      write_meter(s)
      if release and period_ms > 0 and units > 0 then
        local start = laid_at - laid_at % period_ms
        local place = usage_place(key, start)
        local a, d, r = read_slot(place, '.')
        count_usage(place, key, start, period_ms, a, d, r, 0, units, 0)
      end
    end
  end
  reply[k + 1] = ended and '1' or '0'
end
keep_feed()
return reply
