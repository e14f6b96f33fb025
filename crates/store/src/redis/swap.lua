-- Compare-and-set of an allotment.
-- ARGV: 8 the key, 9 the window's label or nothing, 10 the expected version, 11 the rule, 12 the new terms,
-- 13 the allotment, 14 until when it has to be remembered.

if not inside then
  return {'outside'}
end

local key, expect, rule = ARGV[8], tonumber(ARGV[10]), read_rule(ARGV[11])
local label, suffix, member = nil, key, key
if ARGV[9] ~= '' then
  label = tonumber(ARGV[9])
  suffix = key .. '#' .. ARGV[9]
  -- In the order of labels, and those of a key before what begins with it.
  member = key .. '#' .. string.rep('0', 20 - #ARGV[9]) .. ARGV[9]
end
if not rule.steps and not label then
  label = floor(now / rule.per)
end

local place, old = read_traded(suffix)
if (kept[place] or 0) ~= expect then
  return {'conflict'}
end
local terms = read_terms('the terms', ARGV[12])
local s = settle(base .. 'k' .. suffix, label, rule, old)
if (rule.steps and true or false) ~= (terms.steps and true or false) then
  return {'rejected', "the terms aren't of the rule's algorithm"}
end
if rule.steps then
  local cap = terms.steps[step_at(terms.steps, now)].cap
  if s.held > cap then
    return {'guard'}
  end
  s.tokens = min(s.tokens, cap - s.held)
  write_meter(s, bucket_ttl(s, terms.steps))
else
  local rights = window_base(rule, s.label) + terms.delta
  if s.closed or s.used > rights then
    return {'guard'}
  end
end

local ttl = tonumber(ARGV[14]) + SPAN_MS - now
redis.call('HSET', place, 'v', int(expect + 1), 's', ARGV[12], 'a', ARGV[13])
redis.call('HSETNX', place, 'n', '0')
expire(place, ttl)
redis.call('ZADD', base .. 'x', 0, member)
outlive(base .. 'x', ttl)
return {'ok', int(expect + 1)}
