-- Seen as 64-bit integers, without false positives up to collisions of 64 bits.
--
-- Returns   what shared/generations.lua says, and forget(base, member), which the others cannot.
-- KEYS      base          hash: count (members), first (buckets to begin with), buckets, width and
--                         position (see Growth), dropped (cursor of drop_keys())
--           base:NAME     set: the members of one bucket, which Redis keeps as a sorted array of
--                         8 bytes each (intset) up to set-max-intset-entries, 512 by default
-- params    {capacity}, a string: how many members are expected. It counts when the filter is
--           made; an existing one keeps the buckets that it was made with.
-- Members   signed 64-bit integers in decimal. Their range is laid over 0 to `first`, a member's
--           place; a bucket is a part of that, named by where it starts: three digits of base 64,
--           and after a split more digits behind a point. Lua's doubles lose low bits only, and
--           every place is computed here from the same decimal, so alike each time.
-- Growth    There are buckets enough from the beginning for twice the capacity, each made when its
--           first member comes. From then on linear hashing (Litwin 1980): buckets are `width`
--           wide; those below `position` have been split in two. Whenever the average exceeds FILL
--           the bucket at `position` is split. Unsplit buckets hold at most twice the average, 6.5
--           standard deviations below 512.
-- Cost      A new member takes 1.0 µs of Redis at 100,000 members, 1.5 to 1.7 at one and two
--           million, in calls of 300; nearly all of it is the SADD, into a bucket not in the
--           processor's cache. 9.7 bytes a member at the capacity.

local FILL = 192 -- members per bucket on average
local MOST_FIRST = 64 ^ 3 -- buckets to begin with: three digits. Enough for 50 million members
local call = redis.call

-- A new string costs Lua 0.1 µs, string.format and what it returns three times that. Bucket
-- names are therefore put together from strings that are there already.
local DIGITS = {
  [0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
  'G', 'H', 'I', 'J', 'K', 'L', 'M', 'N', 'O', 'P', 'Q', 'R', 'S', 'T', 'U', 'V',
  'W', 'X', 'Y', 'Z', 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l',
  'm', 'n', 'o', 'p', 'q', 'r', 's', 't', 'u', 'v', 'w', 'x', 'y', 'z', '-', '_',
}

-- The key of the bucket that starts at `start`; `prefix` is base .. ':'.
local function bucket_at(prefix, start)
  local fraction = start % 1
  local whole = start - fraction
  local low = whole % 64
  local rest = (whole - low) / 64
  local middle = rest % 64
  local key = prefix .. DIGITS[(rest - middle) / 64] .. DIGITS[middle] .. DIGITS[low]
  if fraction > 0 then
    key = key .. '.'
    repeat
      fraction = fraction * 64
      local digit = fraction - fraction % 1
      key = key .. DIGITS[digit]
      fraction = fraction - digit
    until fraction == 0
  end
  return key
end

-- Of the set that was loaded last. A member's place is member * scale + half: arithmetic takes
-- decimals as they are.
local prefix, first, width, position, count, buckets, scale, half, last

local function load(base, params)
  local state = fields_of(base, 'first', 'width', 'position', 'count', 'buckets')
  local wanted = math.ceil(2 * tonumber(params and params[1] or 0) / FILL)
  first = tonumber(state.first or math.max(1, math.min(wanted, MOST_FIRST)))
  width, position = tonumber(state.width or 1), tonumber(state.position or 0)
  count, buckets = tonumber(state.count or 0), tonumber(state.buckets or first)
  prefix, scale, half = base .. ':', first / 2 ^ 64, first / 2
  last = first * (1 - 2 ^ -53) -- the largest members round up to 2^63
end

-- The key of the bucket that has a member, or would have it.
local function bucket_of(member)
  local place = member * scale + half
  if place > last then place = last end
  local start = place - place % width
  if start < position then start = place - place % (width / 2) end
  return bucket_at(prefix, start)
end

local function fill_bucket(bucket, members)
  in_chunks(#members, function(from, to) call('SADD', bucket, unpack(members, from, to)) end)
end

-- Moves the members of the upper half of the bucket at `position` into a new bucket. Both are made
-- anew: Redis does not turn a set back into an intset.
local function split()
  local middle = position + width / 2
  local old, new = bucket_at(prefix, position), bucket_at(prefix, middle)
  local lower, upper = {}, {}
  for _, member in ipairs(call('SMEMBERS', old)) do
    local part = member * scale + half < middle and lower or upper
    part[#part + 1] = member
  end
  call('UNLINK', old)
  fill_bucket(old, lower)
  fill_bucket(new, upper)
  buckets = buckets + 1
  position = position + width
  if position >= first then position, width = 0, width / 2 end
end

local function add(base, params, members)
  load(base, params)
  local before, answers = count, {}
  for i = 1, #members do
    local member = members[i]
    local new = call('SADD', bucket_of(member), member)
    answers[i], count = new, count + new
    if count > buckets * FILL then split() end
  end
  if count > before then
    call('HSET', base, 'first', first, 'width', width, 'position', position, 'count', count,
      'buckets', buckets)
  end
  return answers
end

local function has(base, params, members)
  load(base, params)
  local answers = {}
  for i = 1, #members do answers[i] = call('SISMEMBER', bucket_of(members[i]), members[i]) end
  return answers
end

-- -> 1 if the member was there, else 0
local function forget(base, member)
  load(base)
  local removed = call('SREM', bucket_of(member), member)
  if removed == 1 then call('HINCRBY', base, 'count', -1) end
  return removed
end

local function status(base, params)
  load(base, params)
  return {count, buckets * FILL, tostring(count / 2 ^ 64)}
end

local function keys(base)
  load(base)
  return function(start)
    if start >= first then return end
    return bucket_at(prefix, start), start + (start < position and width / 2 or width)
  end
end

return {add = add, has = has, forget = forget, status = status, keys = keys}
