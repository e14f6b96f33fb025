-- Slots are a sorted set of ids by their ends, and a hash of units by id for those that aren't one. The meter itself
-- has their sum, their number, and a moment before which none ends.
make[SLOTS] = function()
  local m = {}

  local function set_of(s)
    return s.base .. 'S' .. s.suffix
  end

  local function units_place(s)
    return s.base .. 'W' .. s.suffix
  end

  -- The units of some ids.
  local function units_of(s, ids)
    local place = units_place(s)
    local found = read('HMGET', place, spread(ids))
    for i = 1, #ids do
      found[i] = found[i] and (tonumber(found[i]) or garbage(place)) or 1
    end
    return found
  end

  -- Calls `see(end, units)` for each in the order of ends, until it is done.
  local function each(s, from, to, see)
    local set, at = set_of(s), 0
    while true do
      local page = read('ZRANGEBYSCORE', set, from, to, 'WITHSCORES', 'LIMIT', at, PAGE)
      if #page == 0 then
        return
      end
      local ids = {}
      for i = 1, #page, 2 do
        ids[#ids + 1] = page[i]
      end
      local units = s.weighed and units_of(s, ids)
      for i = 1, #ids do
        if see(tonumber(page[2 * i]), units and units[i] or 1, ids[i]) then
          return
        end
      end
      at = at + PAGE
    end
  end

  function m.read(s, t, i)
    s.sum, s.number, s.first = t[i], t[i + 1], t[i + 2]
    return i + 3
  end

  function m.write(s, t)
    t[3], t[4], t[5] = s.sum, s.number, s.first
  end

  -- Outside the span no slot comes back by itself.
  function m.settle(s)
    local rule = s.rule
    s.of = rule.part == WHOLE and rule.limit or 0
    s.longest_ms = rule.a
    s.blocked = not s.stored and may_be_lost(rule.a)
    if not s.stored then
      s.sum, s.number, s.first = 0, 0, 0
    end
    -- Some have other units than one.
    s.weighed = s.sum ~= s.number
    if not inside or s.number == 0 then
      return
    end
    if s.old then
      -- All go on from the epoch's beginning.
      local ends = epoch_began + rule.a
      if ends <= now then
        s.clear = true
        s.sum, s.number = 0, 0
      else
        s.all_end, s.first = ends, ends
      end
    elseif s.first <= now then
      local over = {}
      each(s, '-inf', now, function(_, units, id)
        over[#over + 1] = id
        s.sum, s.number = s.sum - units, s.number - 1
      end)
      s.over = #over > 0 and over
      local next_end = read('ZRANGEBYSCORE', set_of(s), '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      s.first = tonumber(next_end[2] or '0')
    end
  end

  function m.total(s)
    return s.sum
  end

  -- Changes are made at once: what is asked afterwards is asked of Redis.
  local function tidy(s)
    local set, units = set_of(s), units_place(s)
    if s.clear or not s.stored then
      call('DEL', set, units)
      s.clear = false
    elseif s.over then
      for i = 1, #s.over, PAGE do
        local ids = {spread(s.over, i, min(i + PAGE - 1, #s.over))}
        call('ZREM', set, spread(ids))
        if s.weighed then
          call('HDEL', units, spread(ids))
        end
      end
      s.over = false
    elseif s.all_end then
      local ids = call('ZRANGE', set, 0, -1)
      for i = 1, #ids, PAGE do
        local page = {}
        for k = i, min(i + PAGE - 1, #ids) do
          page[#page + 1] = s.all_end
          page[#page + 1] = ids[k]
        end
        call('ZADD', set, spread(page))
      end
      s.all_end = nil
    end
  end

  local function put_end(s, id, ends)
    call('ZADD', set_of(s), ends, id)
    s.first = s.number <= 1 and ends or min(s.first, ends)
  end

  function m.charge(s, cost, held)
    tidy(s)
    s.sum, s.number = s.sum + cost, s.number + 1
    if cost ~= 1 then
      call('HSET', units_place(s), held.id, cost)
      s.weighed = true
    end
    put_end(s, held.id, held.ends)
  end

  -- Ends the slot `id`; false where it isn't there.
  function m.end_slot(s, id, release)
    if s.number == 0 then
      return false
    end
    local set = set_of(s)
    local ends = tonumber(read('ZSCORE', set, id) or '')
    if not ends or (inside and not s.all_end and ends <= now) then
      return false
    end
    local units = s.weighed and units_of(s, {id})[1] or 1
    tidy(s)
    if not release then
      put_end(s, id, now + s.rule.a)
      return true
    end
    call('ZREM', set, id)
    if s.weighed then
      call('HDEL', units_place(s), id)
    end
    s.sum, s.number = s.sum - units, s.number - 1
    return true
  end

  function m.frees(s, need)
    local short = max(need + s.sum - s.of, 0)
    if s.all_end then
      return s.all_end
    end
    local at
    each(s, s.over and '(' .. now or '-inf', '+inf', function(ends, units)
      short = short - units
      at = ends
      return short <= 0
    end)
    return short <= 0 and at or nil
  end

  function m.ends(s)
    if s.number == 0 then
      return nil
    end
    if s.all_end then
      return s.all_end
    end
    local last = read('ZRANGE', set_of(s), -1, -1, 'WITHSCORES')
    return tonumber(last[2] or '') or garbage(set_of(s))
  end

  function m.ttl(s)
    local ends = m.ends(s)
    return ends and max(ends - now, 0) or 0
  end

  function m.write_rest(s, at)
    if s.number == 0 then
      return
    end
    for _, key in ipairs({set_of(s), s.weighed and units_place(s) or nil}) do
      if at then
        expire(key, at)
      else
        expire_with(key, s.place)
      end
    end
  end

  return of_units(m)
end
