-- The requests of a call, one after the other. What most of them are is decided here: charges of plain token buckets
-- that are admitted. It is what `decide.lua` does, in the same numbers, for one share that doesn't change, no loans, no
-- holds and nothing else beside. All else goes there, and only then are its functions made.
--
-- ARGV[1] after its head: the rules; how many requests; then for each the number of its values and
-- partition, id, mode, term of a hold, whether it is remembered (then the name's key, the content, what is kept for
-- others), and how many charges; for each charge key, number of the rule, cost, units, reserve, denied, usage period (0: not counted),
-- flags, and what the flags say: 1 shadow; 2 newcomers, their key and how many; 4 member, its name and weight.
--
-- The answer is one msgpack array: now, and for each request a status and what follows it:
-- 0 decided: admitted, how many charges, and for each flags (algorithm * 4 + crowded * 2 + fits) and its reading
-- 1 decided earlier: what is kept of that | 2 fenced: the record, or false | 3 the name is another request's
-- 4 an error: its text | 5 outside the span

-- Where the rules are, and then the requests.
local is = HEAD + 1
local find = string.find
-- Whether the request has written something.
local wrote
local decide

-- Where each rule begins among the values.
local rules_at, plain = {}, {}
for k = 1, A[is] do
  rules_at[k] = is + 1
  -- With its part of an overdraft there are two.
  local parts = A[is + 7] % 4 >= OVER and 2 or 1
  is = is + 7
  for _ = 1, parts do
    is = is + 1
    local part = A[is]
    if part == SHARES then
      is = is + 1 + 2 * A[is + 1]
    elseif part == BASE then
      is = is + 2
    end
  end
end

-- The one flow of a bucket's rule, with its time to live; false for all else.
local function read_plain(i)
  local limit, burst, per, ppb = A[i + 1], A[i + 2], A[i + 3], A[i + 10]
  if A[i] ~= BUCKET or A[i + 6] ~= 0 or A[i + 7] ~= SHARES or A[i + 8] ~= 1 or A[i + 9] > now then
    return false
  end
  local rest = limit % 1000
  local in_period = (limit - rest) / 1000 * ppb + floor(rest * ppb / 1000)
  if in_period == 0 then
    return false
  end
  rest = burst % 1000
  local cap = (burst - rest) / 1000 * ppb + floor(rest * ppb / 1000)
  local whole = floor(in_period / per)
  rest = in_period - whole * per
  local fill = min(ceil(cap / (whole + rest / per)), MAX_TTL_MS) + 1
  local ttl = max(fill, A[i + 5]) + SPAN_MS
  local digits = false
  if ttl < PLAIN_DISTANCES and epoch < PLAIN_EPOCHS then
    digits = string.format('%09d', ttl * PLAIN_EPOCHS + epoch)
  end
  return {cap, whole, rest, per, ttl, digits}
end

-- What was found of each charge: place, tokens, moment, its plain rule, place and counts of its usage, start of the period.
local found = {}

-- Decides the request in the values from `i` on, if it is of the kind that most are; whether it did.
local function fast(i)
  local partition = A[i]
  if A[i + 2] ~= CHARGE or A[i + 4] ~= 0 or not inside then
    return false
  end
  local known = records[partition]
  if known ~= record then
    if known ~= nil then
      return false
    end
    local tag = prefix .. '{' .. partition .. '}'
    if call('GET', tag .. 'r') ~= record then
      return false
    end
    records[partition], bases[partition] = record, tag .. life
    purge(tag)
  end
  purge_rest()
  local base = bases[partition]
  local charges = A[i + 5]
  i = i + 6
  local f = 0
  for c = i, i + 8 * charges - 1, 8 do
    local number, cost = A[c + 1], A[c + 2]
    local rule = plain[number]
    if rule == nil then
      rule = read_plain(rules_at[number])
      plain[number] = rule
    end
    if not rule or A[c + 7] ~= 0 or A[c + 5] ~= 0 or cost == 0 then
      return false
    end
    local key = A[c]
    local place = base .. key
    if call('EXISTS', base .. 'T' .. key) == 1 then
      return false
    end
    local cap, at = rule[1], now
    local tokens
    local text = call('GET', place)
    if text then
      local stored, stored_at, stored_epoch
      if not find(text, '%D') then
        if #text < 10 or #text > 19 then
          return false
        end
        local rest = tonumber(sub(text, -9))
        stored_epoch = rest % PLAIN_EPOCHS
        stored = tonumber(sub(text, 1, -10)) - 1
        stored_at = deadline_of(place) - (rest - stored_epoch) / PLAIN_EPOCHS
      else
        local tag, more
        tag, stored_epoch, stored, stored_at, more = decode(text)
        if tag ~= BUCKET or more ~= nil or type(stored) ~= 'number' or type(stored_at) ~= 'number' then
          return false
        end
      end
      if stored_epoch ~= epoch or stored < 0 or stored_at < 0 then
        return false
      end
      tokens = min(stored, cap)
      local dt = now - stored_at
      if dt > 0 then
        local room, whole = cap - tokens, rule[2] * dt
        if whole >= room then
          tokens = cap
        else
          local product = rule[3] * dt
          if product >= EXACT then
            return false
          end
          tokens = tokens + min(whole + floor(product / rule[4]), room)
        end
      else
        at = stored_at
      end
    elseif missing_empty_at < 0 then
      tokens = cap
    else
      return false
    end
    local need, reserve_ppm = cost, A[c + 4]
    if reserve_ppm > 0 then
      need = cost + ceil(cap * reserve_ppm / 1000000)
    end
    if need > tokens then
      return false
    end
    found[f + 1], found[f + 2], found[f + 3], found[f + 4] = place, tokens - cost, at, rule
    local period_ms, units = A[c + 6], A[c + 3]
    if period_ms > 0 and units > 0 then
      local start = now - now % period_ms
      local usage = base .. 'U' .. key .. '@' .. start
      local slot = call('HGET', usage, '.')
      if not slot then
        return false
      end
      local a, d, r, too_much = decode(slot)
      if type(a) ~= 'number' or type(d) ~= 'number' or type(r) ~= 'number' or too_much ~= nil then
        return false
      end
      found[f + 5], found[f + 6], found[f + 7] = usage, encode(a + units, d, r), key .. ' ' .. start .. ' .'
    else
      found[f + 5] = false
    end
    f = f + 7
  end
  out[n + 1], out[n + 2], out[n + 3] = DECIDED, 1, charges
  local m = n + 3
  for k = 0, f - 1, 7 do
    local tokens, at, rule = found[k + 2], found[k + 3], found[k + 4]
    local digits = tokens < PLAIN_TOKENS and rule[6]
    put(found[k + 1], digits and (tokens + 1) .. digits or encode(BUCKET, epoch, tokens, at), at + rule[5])
    wrote = true
    local usage = found[k + 5]
    if usage then
      call('HSET', usage, '.', found[k + 6])
      call('ZADD', base .. 'F', call('INCR', base .. 'Q'), found[k + 7])
      fed[base] = true
    end
    out[m + 1], out[m + 2], out[m + 3] = 4 * BUCKET + 1, tokens, 0
    out[m + 4], out[m + 5], out[m + 6], out[m + 7] = rule[1], rule[2], rule[3], rule[4]
    m = m + 7
  end
  n = m
  return true
end

local at = is + 2
for _ = 1, A[is + 1] do
  local begins = n
  wrote = false
  local ok, why = pcall(fast, at + 1)
  if not (ok and why) and not wrote then
    decide = decide or whole()
    ok, why = pcall(decide, at + 1)
  end
  if not ok then
    for k = #out, begins + 1, -1 do
      out[k] = nil
    end
    out[begins + 1], out[begins + 2] = FAILED, type(why) == 'table' and why.err or tostring(why)
    n = begins + 2
  end
  at = at + 1 + A[at]
end
-- A feed, its counter and what was acknowledged of it end together; a day makes no difference.
for of in pairs(fed) do
  if call('PTTL', of .. 'F') < RETENTION_MS - DAY_MS then
    for _, kind in ipairs({'F', 'Q', 'C'}) do
      call('PEXPIRE', of .. kind, RETENTION_MS)
    end
  end
end
return encode(out)
