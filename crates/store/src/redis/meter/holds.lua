-- === holds ===

local function held_by(holds)
  local held = 0
  if holds then
    for i = 1, #holds do
      held = held + holds[i].units
    end
  end
  return held
end

local function longest_hold(holds)
  local longest = 0
  if holds then
    for i = 1, #holds do
      longest = max(longest, holds[i].ends - now)
    end
  end
  return longest
end

-- Takes out the holds that are over, in the order of their ends.
local function end_holds(s)
  local over, kept = {}, {}
  for _, hold in ipairs(s.holds) do
    local to = hold.ends <= now and over or kept
    to[#to + 1] = hold
  end
  if #over == 0 then
    return over
  end
  s.holds = kept
  table.sort(over, function(a, b)
    return a.ends < b.ends or (a.ends == b.ends and a.id < b.id)
  end)
  return over
end
