-- Seen in RedisBloom: one scalable Bloom filter that the module keeps under `base`.
--
-- Defines   seen_add, seen_drop, seen_status (the same three in every seen_*.lua).
-- KEYS      base: the filter, of the module's own type. Nothing else.
-- params    {error rate, capacity}, strings. They count when the filter is made; an existing one
--           keeps what it was made with.
-- Cost      0.5 to 0.9 µs per new fingerprint, more with the number of layers. They double, so the
--           filter is up to three times the size it needs just after a new layer was made.
-- Error     RedisBloom gives the first layer half the error rate and each next one half again:
--           the sum stays below the rate at any size.
-- Retry     a second seen_add of the same fingerprints answers 0 for all of them.
local seen_add, seen_drop, seen_status
do
  local CHUNK = 200 -- fingerprints per BF.MADD: `unpack` has a limit, and a C stack behind it

  seen_add = function(base, params, fingerprints)
    -- BF.MADD on a missing key would make a filter for 100 members at 1 %.
    if redis.call('EXISTS', base) == 0 then
      redis.call('BF.RESERVE', base, params[1], params[2], 'EXPANSION', '2')
    end
    local answers = {}
    for first = 1, #fingerprints, CHUNK do
      local last = math.min(first + CHUNK - 1, #fingerprints)
      local reply = redis.call('BF.MADD', base, unpack(fingerprints, first, last))
      for i = 1, last - first + 1 do
        local answer = reply[i]
        if type(answer) ~= 'number' then
          -- A full or broken filter answers a shorter array, or an error in it.
          error('BF.MADD did not record: ' .. tostring(answer and answer.err))
        end
        answers[first + i - 1] = answer
      end
    end
    return answers
  end

  -- The module frees one filter as a whole, so `limit` has no part in it.
  seen_drop = function(base, _)
    redis.call('UNLINK', base)
    return true
  end

  -- -> {count, capacity, fill, expected error rate}
  seen_status = function(base, params)
    if redis.call('EXISTS', base) == 0 then
      return { 0, tonumber(params[2]), '0', '0' }
    end
    local info = {}
    local reply = redis.call('BF.INFO', base)
    for i = 1, #reply, 2 do
      -- The names are status replies, which Lua sees as tables.
      info[reply[i].ok or reply[i]] = reply[i + 1]
    end
    local count, capacity = info['Number of items inserted'], info['Capacity']
    local layers = info['Number of filters']
    -- Layers hold C, 2C, 4C, …; all but the newest are full.
    local first = capacity / (2 ^ layers - 1)
    local newest = first * 2 ^ (layers - 1)
    local filled = math.max(0, 1 - (capacity - count) / newest)
    local rate = tonumber(params[1])
    local last_rate = rate / 2 ^ layers
    -- A Bloom filter at its optimum has half its bits set when full: (1 - 2^-x)^k at the
    -- fill x, with k = log2(1 / error).
    local k = math.ceil(-math.log(last_rate) / math.log(2))
    local expected = rate * (1 - 2 ^ (1 - layers)) + last_rate * (2 - 2 ^ (1 - filled)) ^ k
    return {
      count,
      capacity,
      string.format('%.6g', count / capacity),
      string.format('%.6g', expected),
    }
  end
end
