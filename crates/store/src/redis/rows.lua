-- Reading, and what regions tell each other of usage.
-- ARGV[1] after its head: the partition. ARGV: 2 the operation, and what it needs.

local ours, found = enter(A[HEAD + 1])
if not ours then
  return {'fenced', found}
end
local operation = ARGV[2]
local ROWS = 256

local function int(x)
  return string.format('%d', x)
end

-- Every member of a sorted page that `is_live`, at most `limit`, and whether there is more. Others are dropped.
local function page_of(set, limit, fetch, is_live)
  local live, last, more = {}, nil, false
  while not more do
    local members = fetch(last, min(limit + 1 - #live, ROWS))
    if #members == 0 then
      break
    end
    for _, member in ipairs(members) do
      last = member
      local value = is_live(member)
      if not value then
        call('ZREM', set, member.name)
      elseif #live == limit then
        more = true
        break
      else
        live[#live + 1] = value
      end
    end
  end
  return live, more
end

local function page_of_feed(reader, limit)
  local set = base .. 'F'
  local acked = call('HGET', base .. 'C', reader) or '0'
  local function fetch(last, count)
    local rows = call('ZRANGEBYSCORE', set, '(' .. (last and last.seq or acked), '+inf',
      'WITHSCORES', 'LIMIT', 0, int(count))
    local members = {}
    for i = 1, #rows, 2 do
      members[#members + 1] = {name = rows[i], seq = rows[i + 1]}
    end
    return members
  end
  local function is_live(member)
    local key, period, actor = string.match(member.name, '^(%S+) ([%d~]+) (.+)$')
    if not key then
      garbage(set)
    end
    local place = period == '~' and base .. 'H' .. key or usage_place(key, period)
    local slot = read('HGET', place, actor)
    return slot and {key, period, actor, slot, member.seq}
  end
  local live, more = page_of(set, limit, fetch, is_live)
  local seq = acked
  if #live > 0 then
    seq = live[#live][5]
  end
  local reply = {int(now), int(tonumber(seq)), more and '1' or '0'}
  for _, entry in ipairs(live) do
    for i = 1, 4 do
      reply[#reply + 1] = entry[i]
    end
  end
  return reply
end

-- ARGV: 3 the reader, 4 the limit.
local function feed()
  local page = page_of_feed(ARGV[3], tonumber(ARGV[4]))
  table.insert(page, 1, 'ok')
  return page
end

local function traded_names(limit)
  local set = base .. 'X'
  local function fetch(last, count)
    local names = call('ZRANGEBYLEX', set, last and '(' .. last.name or '-', '+', 'LIMIT', 0, int(count))
    local members = {}
    for i, name in ipairs(names) do
      members[i] = {name = name}
    end
    return members
  end
  local function is_live(member)
    local key, label = string.match(member.name, '^(.-)#0*(%d+)$')
    local place = base .. 'T' .. (key and key .. '#' .. label or member.name)
    return read('HGET', place, 'v') and member.name
  end
  local live = page_of(set, limit, fetch, is_live)
  return live
end

-- ARGV: 3 the limit.
local function traded()
  local names = traded_names(tonumber(ARGV[3]))
  table.insert(names, 1, 'ok')
  return names
end

-- ARGV: 3 how many traded meters, 4 how many slots for one reader, then the readers.
local function sweep()
  local reply = {'ok', int(now), traded_names(tonumber(ARGV[3]))}
  for i = 5, #ARGV do
    reply[#reply + 1] = page_of_feed(ARGV[i], tonumber(ARGV[4]))
  end
  return reply
end

-- ARGV: 3 the reader, 4 up to where.
local function ack()
  local acked = tonumber(call('HGET', base .. 'C', ARGV[3]) or '0')
  if tonumber(ARGV[4]) > acked then
    call('HSET', base .. 'C', ARGV[3], ARGV[4])
    fed[base] = true
  end
  keep_feed()
  return {'ok'}
end

-- ARGV: from 3 on, for each slot: key, period, until when to keep it, actor, admitted, refunded, refused.
local function merge()
  for i = 3, #ARGV, 7 do
    local key, period, actor = ARGV[i], ARGV[i + 1], ARGV[i + 3]
    local place = usage_place(key, period)
    local a, d, r = read_slot(place, actor)
    local admitted = max(a or 0, tonumber(ARGV[i + 4]))
    local refunded = max(d or 0, tonumber(ARGV[i + 5]))
    local refused = max(r or 0, tonumber(ARGV[i + 6]))
    local grew = admitted > (a or 0) or refunded > (d or 0) or refused > (r or 0)
    if grew or not a then
      write_slot(place, actor, admitted, refunded, refused, not a, tonumber(ARGV[i + 2]))
    end
    if grew then
      note_change(key, period, actor)
    elseif not a then
      -- A change of a slot that has expired isn't one of this slot.
      call('ZREM', base .. 'F', feed_member(key, period, actor))
    end
  end
  keep_feed()
  return {'ok'}
end

-- ARGV: 3 the key, then the periods.
local function usage()
  local reply = {'ok', int(now)}
  for i = 4, #ARGV do
    reply[#reply + 1] = read('HGETALL', usage_place(ARGV[3], ARGV[i]))
  end
  return reply
end

-- ARGV: from 3 on, what follows the kind in the names of a meter and of what is kept beside it. For each the meter, the
-- list of a log, the set and the units of slots, when a plain bucket expires, and what is kept beside it.
local function snapshots()
  local reply = {'ok', int(now)}
  for i = 3, #ARGV do
    local suffix = ARGV[i]
    local meter = read('GET', base .. suffix)
    local list, set, units = {}, {}, {}
    local tag = meter and string.byte(meter) or 0
    local kind, deadline = tag % 8, 0
    if tag >= DIGIT_0 and tag <= DIGIT_9 then
      deadline, kind = deadline_of(base .. suffix), BUCKET
    end
    if kind == LOG then
      list = read('LRANGE', base .. 'L' .. suffix, 0, -1)
    elseif kind == SLOTS then
      set = read('ZRANGE', base .. 'S' .. suffix, 0, -1, 'WITHSCORES')
      units = read('HGETALL', base .. 'W' .. suffix)
    end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = meter, list, set, units
    reply[n + 5] = max(deadline, 0)
    reply[n + 6] = read('HMGET', base .. 'T' .. suffix, 'v', 's', 'a', 'n')
  end
  return reply
end

local operations = {
  feed = feed, traded = traded, sweep = sweep, ack = ack, merge = merge, usage = usage, snapshots = snapshots,
}
return operations[operation]()
