-- Seen as 64-bit integers, without false positives up to collisions of 64 bits.
--
-- Returns   add, drop, status and has (the same four in each file of this folder); and
--           forget, which the others cannot.
-- KEYS      base          hash: count (members), first (buckets to begin with), buckets, width and
--                         position (see Growth), dropped (cursor of seen_drop)
--           base:NAME     set: the members of one bucket, which Redis keeps as a sorted array of
--                         8 bytes each (intset) up to set-max-intset-entries, 512 by default
-- params    {capacity}, a string: how many members are expected. It counts when the filter is
--           made; an existing one keeps the buckets that it was made with.
-- Members   signed 64-bit integers in decimal. Their range is laid over 0 to `first`, a member's
--           place; a bucket is a part of that, named by where it starts: three digits of base 64,
--           and after a split more digits behind a point. Lua's doubles lose low bits only, and
--           every place is computed here from the same decimal, so alike each time.
-- Growth    There are buckets enough from the beginning for twice the capacity, each made when its
--           first member comes: splitting them costs as much as filling them, and while they are
--           half full a member takes 9.7 bytes instead of 9.4. From then on linear hashing (Litwin
--           1980): buckets are `width` wide; those below `position` have been split in two.
--           Whenever the average exceeds FILL the bucket at `position` is split, so one split for
--           FILL members. Unsplit buckets hold at most twice the average, 6.5 standard deviations
--           below 512.
-- Cost      A new member takes 1.0 µs of Redis at 100,000 members, 1.5 to 1.7 at one and two
--           million, in calls of 300 on a cloud machine; 0.2 to 0.5 more in calls of 50.
--           Nearly all of it is the SADD, into a bucket not in the processor's cache. Growing
--           from one bucket costs about a third more. 9.7 bytes a member at the capacity.
-- Retry     a second seen_add of the same fingerprints answers 0 for all of them.
-- Include   shared/filters

local FILL = 192 -- members per bucket on average
local MOST_FIRST = 64 ^ 3 -- buckets to begin with: three digits. Enough for 50 million members
local CHUNK = 200 -- members or keys per command
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

-- A member's place is member * scale + first / 2: arithmetic takes decimals as they are.
local function scale_of(first)
  return first / 2 ^ 64
end

-- -> first, width, position, count, buckets
local function load(base, params)
  local state = call('HMGET', base, 'first', 'width', 'position', 'count', 'buckets')
  local wanted = math.ceil(2 * tonumber(params and params[1] or 0) / FILL)
  local first = number_within(state[1], math.max(1, math.min(wanted, MOST_FIRST)), 1, MOST_FIRST)
  local width = number_within(state[2], 1, 2 ^ -40, 1)
  local position = number_within(state[3], 0, 0, first - width)
  -- Buckets are halved, and each begins where another one ends.
  if first % 1 > 0 or math.frexp(width) ~= 0.5 or position % width > 0 then foreign_number() end
  return first,
    width,
    position,
    number_within(state[4], 0, 0, 2 ^ 53),
    number_within(state[5], first, 1, 2 ^ 53)
end

local function in_chunks(command, key, members, first, last)
  for at = first, last, CHUNK do
    call(command, key, unpack(members, at, math.min(at + CHUNK - 1, last)))
  end
end

-- Move the members of the upper half of the bucket at `start` into a new bucket.
local function split(prefix, start, width, first)
  local old = bucket_at(prefix, start)
  local middle = start + width / 2
  local new = bucket_at(prefix, middle)
  local members = call('SMEMBERS', old)
  -- An intset comes in ascending order, which saves 0.4 µs a member here.
  local sorted = call('OBJECT', 'ENCODING', old) == 'intset'
  if not sorted then
    table.sort(members, function(a, b)
      return tonumber(a) < tonumber(b)
    end)
  end
  local scale, half = scale_of(first), first / 2
  local low, high = 1, #members + 1 -- the first member of the upper half, by bisection
  while low < high do
    local mid = (low + high - (low + high) % 2) / 2
    if members[mid] * scale + half < middle then
      low = mid + 1
    else
      high = mid
    end
  end
  in_chunks('SADD', new, members, low, #members)
  if sorted then
    in_chunks('SREM', old, members, low, #members)
  else
    -- Redis does not turn a set back into an intset: make it anew.
    call('UNLINK', old)
    in_chunks('SADD', old, members, 1, low - 1)
  end
end

local function seen_add(base, params, fingerprints)
  local first, width, position, count, buckets = load(base, params)
  local before = count
  local full = buckets * FILL
  local prefix = base .. ':'
  local scale, half = scale_of(first), first / 2
  local last = first * (1 - 2 ^ -53) -- the largest members round up to 2^63
  local answers = {}
  for i = 1, #fingerprints do
    local member = fingerprints[i]
    local place = member * scale + half
    if place > last then
      place = last
    end
    local start = place - place % width
    if start < position then
      start = place - place % (width / 2)
    end
    local bucket = bucket_at(prefix, start)
    local new = call('SADD', bucket, member)
    answers[i] = new
    if new == 1 then
      count = count + 1
    elseif new ~= 0 then
      wrong_answer(new, 'SADD', bucket)
    end
    if count > full then
      split(prefix, position, width, first)
      buckets = buckets + 1
      full = full + FILL
      position = position + width
      if position >= first then
        position = 0
        width = width / 2
      end
    end
  end
  if count > before then
    call(
      'HSET', base, 'first', first, 'width', width, 'position', position, 'count', count,
      'buckets', buckets
    )
  end
  return answers
end

local function seen_drop(base, limit)
  -- What nobody here has written says nothing of the buckets, which stay then.
  local known, first, width, position = pcall(load, base)
  return drop_keys(base, limit, function(start)
    if known and start < first then
      return bucket_at(base .. ':', start), start + (start < position and width / 2 or width)
    end
  end)
end

-- The key of the bucket that has a member, or would have it.
local function bucket_of(base, member)
  local first, width, position = load(base)
  local place = math.min(member * scale_of(first) + first / 2, first * (1 - 2 ^ -53))
  local start = place - place % width
  if start < position then start = place - place % (width / 2) end
  return bucket_at(base .. ':', start)
end

-- -> for each member 1 if it is there, else 0; nothing is recorded
local function seen_has(base, params, members)
  local answers = {}
  for i = 1, #members do
    local bucket = bucket_of(base, members[i])
    local answer = call('SISMEMBER', bucket, members[i])
    if answer ~= 0 and answer ~= 1 then wrong_answer(answer, 'SISMEMBER', bucket) end
    answers[i] = answer
  end
  return answers
end

-- -> 1 if the member was there, else 0
local function seen_forget(base, member)
  local removed = call('SREM', bucket_of(base, member), member)
  if removed == 1 then call('HINCRBY', base, 'count', -1) end
  return removed
end

local function seen_status(base, params)
  local _, _, _, count, buckets = load(base, params)
  return status_of(count, buckets * FILL, count / 2 ^ 64)
end

return {add = seen_add, drop = seen_drop, status = seen_status, has = seen_has,
  forget = seen_forget}
