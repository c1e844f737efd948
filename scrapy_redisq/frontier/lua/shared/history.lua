-- Returns keep(records, most): keeps what became of requests, for people, by what they are known
-- by: records is {{id, record}...}, of which no more than the newest `most` stay. To be called
-- behind the first write of a script. Nothing rests on it, so whatever is in the way of it is
-- passed over.
--
-- Include  shared/keys shared/bounds shared/texts shared/clock

return function(records, most)
  local times, all = past_key('history'), past_key('histories')
  in_chunks(#records, function(first, last)
    local ended, kept = {}, {}
    for i = first, last do
      ended[#ended + 1], ended[#ended + 2] = integer(NOW), records[i][1]
      kept[#kept + 1], kept[#kept + 2] = records[i][1], records[i][2]
    end
    if type(redis.pcall('ZADD', times, unpack(ended))) == 'number' then
      redis.pcall('HSET', all, unpack(kept))
    end
  end)
  local there = tonumber(redis.pcall('ZCARD', times))
  -- Some more each time where `most` was lowered.
  local excess = there and math.min(there - most, #records + 100) or 0
  in_chunks(excess, function(first, last)
    redis.pcall('HDEL', all, unpack(redis.call('ZRANGE', times, 0, last - first)))
    redis.call('ZREMRANGEBYRANK', times, 0, last - first)
  end)
end
