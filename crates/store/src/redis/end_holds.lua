-- Ends the holds of one request. What is no longer there is left alone.
-- ARGV: 8 the hold's id, 9 when it was laid, 10 whether its units come back; then for each charge its key, rule,
-- units and usage period.

local FIRST, EACH = 11, 4
local id, laid_at, release = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] == '1'

local reply = {'ok'}
for i = FIRST, #ARGV, EACH do
  local key, rule = ARGV[i], read_rule(ARGV[i + 1])
  local label, suffix = nil, key
  if not rule.steps then
    label = floor(laid_at / rule.per)
    suffix = key .. '#' .. int(label)
  end
  local ended = false
  local place = base .. 'k' .. suffix
  if redis.call('EXISTS', place) == 1 then
    local _, terms = read_traded(suffix)
    local s = settle(place, label, rule, terms)
    ended = end_hold(s, id, release)
    if ended then
      write_meter(s, meter_ttl(s))
      local period_ms = tonumber(ARGV[i + 3])
      if release and period_ms > 0 then
        count_usage(key, laid_at, period_ms, 0, tonumber(ARGV[i + 2]), 0)
      end
    end
  end
  reply[#reply + 1] = ended and '1' or '0'
end
keep_feed()
return reply
