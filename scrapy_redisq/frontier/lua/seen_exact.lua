-- Seen as 64-bit integers, without false positives up to collisions of 64 bits.
--
-- Defines   seen_add, seen_drop, seen_status (the same three in every seen_*.lua).
-- KEYS      base          hash: count (members), buckets, width and position (see Growth),
--                         dropped (cursor of seen_drop)
--           base:START    set: the members of one bucket, which Redis keeps as a sorted array of
--                         8 bytes each (intset) up to set-max-intset-entries, 512 by default
-- params    none.
-- Members   signed 64-bit integers in decimal. A bucket is a range of their high 32 bits
--           (0 to 2^32), named by where it starts, in hexadecimal. Lua's doubles lose low bits
--           only, and every bucket is computed here from the same decimal, so alike each time.
-- Growth    Linear hashing (Litwin 1980): buckets are `width` wide; those below `position` have
--           been split in two. Whenever the average exceeds FILL the bucket at `position` is
--           split, so one split for FILL members. Unsplit buckets hold at most twice the average,
--           6.5 standard deviations below 512.
-- Cost      2.2 to 2.7 µs per new member at a million, splits included: 1.2 µs of it is the bare
--           SADD into a bucket that is not in the processor's cache. 9.5 bytes a member.
-- Retry     a second seen_add of the same fingerprints answers 0 for all of them.
local seen_add, seen_drop, seen_status
do
  local FILL = 192 -- members per bucket on average
  local WHOLE = 2 ^ 32 -- width of the first bucket
  local CHUNK = 200 -- members per command
  local format, call = string.format, redis.call

  -- -> the member's place: its high 32 bits, with a fraction
  local function place_of(member)
    local place = tonumber(member) / WHOLE + WHOLE / 2
    -- The largest members round up to 2^64.
    return place < WHOLE and place or WHOLE - 1
  end

  -- -> width, position, count, buckets
  local function load(base)
    local state = redis.call('HMGET', base, 'width', 'position', 'count', 'buckets')
    return tonumber(state[1] or WHOLE),
      tonumber(state[2] or 0),
      tonumber(state[3] or 0),
      tonumber(state[4] or 1)
  end

  local function in_chunks(command, key, members, first, last)
    for at = first, last, CHUNK do
      redis.call(command, key, unpack(members, at, math.min(at + CHUNK - 1, last)))
    end
  end

  -- Move the members of the upper half of the bucket at `start` into a new bucket.
  local function split(prefix, start, width)
    local old = prefix .. format('%x', start)
    local middle = start + width / 2
    local members = redis.call('SMEMBERS', old)
    -- An intset comes in ascending order, which saves 0.4 µs a member here.
    local sorted = redis.call('OBJECT', 'ENCODING', old) == 'intset'
    if not sorted then
      table.sort(members, function(a, b)
        return tonumber(a) < tonumber(b)
      end)
    end
    local low, high = 1, #members + 1 -- the first member of the upper half, by bisection
    while low < high do
      local mid = (low + high - (low + high) % 2) / 2
      if place_of(members[mid]) < middle then
        low = mid + 1
      else
        high = mid
      end
    end
    in_chunks('SADD', prefix .. format('%x', middle), members, low, #members)
    if sorted then
      in_chunks('SREM', old, members, low, #members)
    else
      -- Redis does not turn a set back into an intset: make it anew.
      redis.call('UNLINK', old)
      in_chunks('SADD', old, members, 1, low - 1)
    end
  end

  seen_add = function(base, _, fingerprints)
    local width, position, count, buckets = load(base)
    local before = count
    local full = buckets * FILL
    local prefix = base .. ':'
    local answers = {}
    for i = 1, #fingerprints do
      local member = fingerprints[i]
      local place = place_of(member)
      local start = place - place % width
      if start < position then
        start = place - place % (width / 2)
      end
      local new = call('SADD', prefix .. format('%x', start), member)
      answers[i] = new
      count = count + new
      if count > full then
        split(prefix, position, width)
        buckets = buckets + 1
        full = full + FILL
        position = position + width
        if position >= WHOLE then
          position = 0
          width = width / 2
        end
      end
    end
    if count > before then
      redis.call(
        'HSET', base, 'width', width, 'position', position, 'count', count,
        'buckets', buckets
      )
    end
    return answers
  end

  seen_drop = function(base, limit)
    local width, position = load(base)
    local start = tonumber(redis.call('HGET', base, 'dropped') or 0)
    for _ = 1, limit do
      if start >= WHOLE then
        break
      end
      redis.call('UNLINK', base .. ':' .. format('%x', start))
      start = start + (start < position and width / 2 or width)
    end
    if start < WHOLE then
      redis.call('HSET', base, 'dropped', start)
      return false
    end
    redis.call('UNLINK', base)
    return true
  end

  -- -> {count, capacity, fill, expected error rate}
  seen_status = function(base, _)
    local _, _, count, buckets = load(base)
    return {
      count,
      buckets * 512,
      format('%.6g', count / (buckets * 512)),
      format('%.6g', count / 2 ^ 64),
    }
  end
end
