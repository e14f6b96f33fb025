-- What every fenced script begins with.
-- ARGV[1] is a sequence of msgpack values. It begins with: 1 the prefix of all names, 2 the record that the caller
-- believes, 3 and 4 the span, 5 the epoch, 6 when it began, 7 when a missing meter was empty (-1: it was full),
-- 8 before when windows are closed, 9 whether the store has replicas (1): then nothing is decided outside the span.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local decode, encode, sub = cmsgpack.unpack, cmsgpack.pack, string.sub
local spread = unpack

local A
if #ARGV[1] < 7000 then
  A = {decode(ARGV[1])}
else
  -- Lua's stack has no place for all of them at once.
  A = {}
  local at = 0
  repeat
    local page = {cmsgpack.unpack_limit(ARGV[1], 4000, at)}
    at = page[1]
    for i = 2, #page do
      A[#A + 1] = page[i]
    end
  until at < 0
end
local prefix, record = A[1], A[2]
local inside = A[3] <= now and now <= A[4]
local epoch, epoch_began, missing_empty_at, closed_before = A[5], A[6], A[7], A[8]
local decides = inside or A[9] == 0
local life = sub(record, 1, 8)

-- What the names of the partition's keys begin with.
local base
-- For each partition that was met, what its names begin with, and its record.
local bases, records = {}, {}
-- The partitions, by what their names begin with, whose feed of changes has to be kept.
local fed = {}
