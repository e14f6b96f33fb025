-- === what counts units in the share: sliding windows and slots ===

-- Whether a meter that isn't there gives nothing yet: it may have been lost, and what it gave counts for so long.
local function may_be_lost(counts_ms)
  if not inside then
    return true
  end
  return missing_empty_at >= 0 and now < missing_empty_at + counts_ms
end

-- Adds to `m`, which has `total`, `frees` and `ends`, what such algorithms have in common.
local function of_units(m)
  local function counted(s)
    if s.blocked then
      return s.of
    end
    return held_by(s.holds) + m.total(s)
  end

  local function available(s)
    return max(s.of - counted(s), 0)
  end

  local function retry_ms(s, need, there)
    if need > s.of then
      return -1
    end
    if need <= there then
      return 0
    end
    if s.blocked then
      return s.longest_ms
    end
    local at = m.frees(s, need)
    return max(at and at - now or s.longest_ms, 1)
  end

  local function reset_ms(s)
    if s.blocked or (s.holds and #s.holds > 0) then
      return s.longest_ms
    end
    local at = m.ends(s)
    return at and max(at - now, 0) or 0
  end

  function m.reading(s, need, to, n)
    local there = available(s)
    to[n + 1], to[n + 2], to[n + 3], to[n + 4] = there, s.of, retry_ms(s, need, there), reset_ms(s)
    return n + 4
  end

  m.counted, m.available = counted, available
  return m
end
