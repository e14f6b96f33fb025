-- Compare-and-set of an allotment.
-- ARGV[1] after its head: the partition; the rules, of which there is one; the key; what comes after the kind in the
-- names; the name among the traded; the window's label, or -1; the expected version; until when it has to be
-- remembered. ARGV: 2 the new terms, 3 the allotment.

local ours, found = enter(A[HEAD + 1])
if not ours then
  return {'fenced', found}
end
if not inside then
  return {'outside'}
end

local rules, i = read_rules(HEAD + 2)
local rule = rules[1]
local suffix, member, label, expect, keep_until = A[i], A[i + 1], A[i + 2], A[i + 3], A[i + 4]
if label < 0 then
  label = label_of(rule, now)
end

local s = {base = base, place = base .. suffix, suffix = suffix, label = label, rule = rule}
read_traded(s, suffix)
if (s.version or 0) ~= expect then
  return {'conflict'}
end
local terms = read_terms('the terms', ARGV[2])
if (terms.delta and BASE or SHARES) ~= rule.part then
  return {'rejected', "the terms aren't of the rule's algorithm"}
end
settle(s)
if rule.by_plan and s.noted_limit and (s.noted_limit ~= rule.limit or s.noted_burst ~= rule.burst) then
  return {'conflict'}
end

-- Puts the new terms in force, unless they leave less than what is used or held.
if terms.delta then
  local rights = window_base(rule, s.label or 0) + terms.delta
  local used = s.used or s.m.counted and s.m.counted(s) or held_by(s.holds)
  if rights < 0 or s.closed or used > rights then
    return {'guard'}
  end
else
  local ppb = share_at(terms.shares, now)
  if rule.kind == BUCKET then
    local room = flow_of(rule, ppb).cap - held_by(s.holds)
    if room < 0 then
      return {'guard'}
    end
    s.tokens = min(s.tokens, room)
    write_meter(s, terms.shares)
  else
    local of = floor(part_micro(rule.limit, ppb) / 1000000)
    -- What was admitted on a loan that is over counts on, and is no reason not to raise a share.
    if of < s.of and of < (s.used or s.m.counted(s)) then
      return {'guard'}
    end
  end
end

call('HSET', s.traded, 'v', expect + 1, 's', ARGV[2], 'a', ARGV[3])
call('HSETNX', s.traded, 'n', '0')
expire(s.traded, keep_until + SPAN_MS)
call('ZADD', base .. 'X', 0, member)
outlive(base .. 'X', keep_until + SPAN_MS)
return {'ok', expect + 1}
