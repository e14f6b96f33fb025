-- Of a counter `a` is the period and `b` the number of cells. Counts are newest first.
make[COUNTER] = function()
  local m = {}

  function m.read(s, t, i)
    local n = t[i + 1]
    if not n or n < 1 or n > #t then
      return nil
    end
    local counts = {}
    for k = 1, n do
      counts[k] = t[i + 1 + k]
    end
    s.cell, s.counts = t[i], counts
    return i + 2 + n
  end

  function m.write(s, t)
    local counts = s.counts
    t[3], t[4] = s.cell, #counts
    for k = 1, #counts do
      t[4 + k] = counts[k]
    end
  end

  local function sum(counts)
    local total = 0
    for k = 1, #counts do
      total = total + counts[k]
    end
    return total
  end

  function m.settle(s)
    local per, cells = s.rule.a, s.rule.b
    local length = ceil(per / cells)
    s.length, s.longest_ms = length, 2 * per
    local present = floor(now / length)
    s.blocked = not s.stored and not s.rule.lenient and may_be_lost(2 * per)
    local cell, counts = s.cell, s.counts
    if not s.stored then
      cell, counts = present, {0}
    end
    if s.old and inside then
      cell, counts = floor(epoch_began / length), {sum(counts)}
    end
    -- After a step back of the clock the newest cell goes on.
    local newest = max(cell, present)
    if inside then
      local passed = min(newest - cell, cells + 1)
      if passed > 0 then
        local moved = {}
        for k = 1, passed do
          moved[k] = 0
        end
        for k = 1, min(#counts, cells + 1 - passed) do
          moved[passed + k] = counts[k]
        end
        counts = moved
      end
      while #counts > cells + 1 do
        counts[#counts] = nil
      end
    else
      -- When any of it came isn't known, so all of it counts from now on.
      counts = {sum(counts)}
    end
    if cells == 1 then
      -- What several windows of an older epoch put into one cell: more than any limit, and exact when multiplied.
      for k = 1, #counts do
        counts[k] = min(counts[k], floor(EXACT / s.rule.a))
      end
    end
    while #counts > 1 and counts[#counts] == 0 do
      counts[#counts] = nil
    end
    s.cell, s.counts = newest, counts
    if inside and s.holds then
      for _, hold in ipairs(end_holds(s)) do
        counts[1] = counts[1] + hold.units
      end
    end
  end

  function m.total(s)
    local per, counts = s.rule.a, s.counts
    if s.rule.b > 1 or not inside then
      return sum(counts)
    end
    local elapsed = min(max(now - s.cell * s.length, 0), per)
    return counts[1] + ceil((counts[2] or 0) * (per - elapsed) / per)
  end

  function m.charge(s, cost, held)
    if not held then
      s.counts[1] = s.counts[1] + cost
    end
  end

  function m.end_hold(s, hold, release)
    if not release then
      s.counts[1] = s.counts[1] + hold.units
    end
  end

  function m.frees(s, need)
    local per, cells, length, counts = s.rule.a, s.rule.b, s.length, s.counts
    local room = s.of - (held_by(s.holds) + need)
    if room < 0 then
      return nil
    end
    if cells == 1 and inside then
      -- In this cell, and if not there in the next, where all of this one counts as the previous.
      local begins, counted, whole = s.cell * length, counts[2] or 0, room - counts[1]
      if whole < 0 then
        begins, counted, whole = begins + length, counts[1], room
      end
      if counted == 0 then
        return begins
      end
      return begins + max(per - floor(whole * per / counted), 0)
    end
    local left = sum(counts)
    for k = #counts, 1, -1 do
      left = left - counts[k]
      if left <= room then
        return (s.cell + cells + 2 - k) * length
      end
    end
    return nil
  end

  function m.ends(s)
    local counts = s.counts
    for k = 1, #counts do
      if counts[k] > 0 then
        return max(s.cell + s.rule.b + 2 - k, 0) * s.length
      end
    end
    return nil
  end

  function m.ttl(s)
    return max(s.cell * s.length - now, 0) + s.longest_ms + longest_hold(s.holds)
  end

  return of_units(m)
end
