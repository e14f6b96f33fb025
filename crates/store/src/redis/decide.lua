-- All charges of one request that share a partition: all or nothing.
-- ARGV: 8 `p`eek, `c`harge or `h`old; 9 and 10 the hold's id and term; then for each charge its key, rule, cost,
-- units, usage period (0: not counted) and whether it is a shadow.

local FIRST, EACH = 11, 6
local mode = ARGV[8]
local peek, holding = mode == 'p', mode == 'h'
local hold_id, hold_ends = tonumber(ARGV[9]), now + tonumber(ARGV[10])

local charges, admitted = {}, true
for i = FIRST, #ARGV, EACH do
  local key, rule = ARGV[i], read_rule(ARGV[i + 1])
  local cost, units = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local label, suffix = nil, key
  if not rule.steps then
    label = floor(now / rule.per)
    suffix = key .. '#' .. int(label)
  end
  local place, terms = read_traded(suffix)
  local s = settle(base .. 'k' .. suffix, label, rule, terms)
  local fits = cost <= available(s) and not (holding and #s.holds >= HOLDS_MAX)
  admitted = admitted and (fits or ARGV[i + 5] == '1')
  charges[#charges + 1] = {
    key = key, s = s, place = place, cost = cost, units = units, fits = fits, period_ms = tonumber(ARGV[i + 4]),
  }
end

local reply = {'ok', int(now), admitted and '1' or '0'}
for _, c in ipairs(charges) do
  local charged = admitted and c.fits and not peek
  if charged then
    charge(c.s, c.cost, holding and {id = hold_id, units = c.cost, ends = hold_ends} or nil)
    write_meter(c.s, meter_ttl(c.s))
  end
  reply[#reply + 1] = (c.fits and '1 ' or '0 ') .. reading(c.s)
  if not peek then
    count_attempts(c.place, c.units, not c.fits)
    if c.period_ms > 0 then
      if charged then
        count_usage(c.key, now, c.period_ms, c.units, 0, 0)
      elseif not c.fits then
        count_usage(c.key, now, c.period_ms, 0, 0, c.units)
      end
    end
  end
end
keep_feed()
return reply
