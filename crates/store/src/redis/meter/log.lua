-- The log is a list of `at, units` in the order of time; the newest entry is in the meter itself, after the sum of all
-- and the moment of the oldest.
make[LOG] = function()
  local m = {}

  local function list_of(s)
    return s.base .. 'L' .. s.suffix
  end

  local function entry(list, text)
    local ok, at, units = pcall(decode, text)
    if not ok or not is_count(at) or not is_count(units) then
      garbage(list)
    end
    return at, units
  end

  function m.read(s, t, i)
    s.sum, s.first, s.last, s.last_units = t[i], t[i + 1], t[i + 2], t[i + 3]
    return i + 4
  end

  function m.write(s, t)
    t[3], t[4], t[5], t[6] = s.sum, s.first, s.last, s.last_units
  end

  local function add(s, at, units)
    if s.last_units > 0 and s.last >= at then
      s.last_units = s.last_units + units
    else
      if s.last_units > 0 then
        local pending = s.pending
        if s.listed == 0 and #pending == 0 then
          s.first = s.last
        end
        pending[#pending + 1] = {s.last, s.last_units}
      end
      s.last, s.last_units = at, units
    end
    s.sum = s.sum + units
  end

  -- Drops the entries that are a whole period old.
  local function trim(s)
    local per = s.rule.a
    local list
    while s.listed > 0 and s.first + per <= now do
      list = list or list_of(s)
      local page = read('LRANGE', list, s.dropped, s.dropped + PAGE - 1)
      if #page == 0 then
        garbage(list)
      end
      for i = 1, #page do
        local at, units = entry(list, page[i])
        s.first = at
        if at + per > now then
          break
        end
        s.dropped = s.dropped + 1
        s.listed = s.listed - units
        s.sum = s.sum - units
      end
    end
    if s.listed > 0 then
      return
    end
    local pending = s.pending
    while pending[1] and pending[1][1] + per <= now do
      s.sum = s.sum - table.remove(pending, 1)[2]
    end
    s.first = pending[1] and pending[1][1] or 0
    if not pending[1] and s.last + per <= now then
      s.sum, s.last, s.last_units = 0, 0, 0
    end
  end

  function m.settle(s)
    s.longest_ms = s.rule.a
    s.blocked = not s.stored and not s.rule.lenient and may_be_lost(s.rule.a)
    s.pending, s.dropped = {}, 0
    if not s.stored then
      s.sum, s.first, s.last, s.last_units = 0, 0, 0, 0
    end
    -- Units in the list.
    s.listed = s.sum - s.last_units
    if not inside then
      return
    end
    if s.old and s.sum > 0 then
      s.unlist = true
      s.listed, s.first, s.last, s.last_units = 0, 0, epoch_began, s.sum
    end
    if s.holds then
      for _, hold in ipairs(end_holds(s)) do
        add(s, hold.ends, hold.units)
      end
    end
    trim(s)
  end

  function m.total(s)
    return s.sum
  end

  function m.charge(s, cost, held)
    if not held then
      add(s, now, cost)
    end
  end

  function m.end_hold(s, hold, release)
    if not release then
      add(s, now, hold.units)
    end
  end

  function m.frees(s, need)
    local short = max(need + m.counted(s) - s.of, 0)
    local per = s.rule.a
    local at, listed = s.dropped, s.listed
    while listed > 0 do
      local list = list_of(s)
      local page = read('LRANGE', list, at, at + PAGE - 1)
      if #page == 0 then
        garbage(list)
      end
      for i = 1, #page do
        local moment, units = entry(list, page[i])
        short = short - units
        if short <= 0 then
          return moment + per
        end
        listed = listed - units
      end
      at = at + PAGE
    end
    for _, waiting in ipairs(s.pending) do
      short = short - waiting[2]
      if short <= 0 then
        return waiting[1] + per
      end
    end
    if s.last_units > 0 and short <= s.last_units then
      return s.last + per
    end
    return nil
  end

  function m.ends(s)
    return s.last_units > 0 and s.last + s.rule.a or nil
  end

  function m.ttl(s)
    local last = s.last_units > 0 and s.last or now
    return max(last - now, 0) + s.longest_ms + longest_hold(s.holds)
  end

  -- After the meter was written.
  function m.write_rest(s, at)
    local list = list_of(s)
    if s.unlist or not s.stored then
      call('DEL', list)
    elseif s.dropped > 0 then
      call('LTRIM', list, s.dropped, -1)
    end
    for _, waiting in ipairs(s.pending) do
      call('RPUSH', list, encode(waiting[1], waiting[2]))
      s.listed = s.listed + waiting[2]
    end
    s.pending, s.dropped, s.unlist = {}, 0, false
    if s.listed > 0 then
      if at then
        expire(list, at)
      else
        expire_with(list, s.place)
      end
    end
  end

  return of_units(m)
end
