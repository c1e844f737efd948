-- Returns functions that keep the past, for people; nothing rests on it. To be called behind the
-- first write of a script.
--
-- Include  shared/workers

-- Adds to a list of which only the newest `most` are kept.
local function append(name, array, most)
  local key = past_key(name)
  local excess = redis.call('RPUSH', key, cmsgpack.pack(array)) - most
  -- Some more each time where `most` was lowered.
  for _ = 1, math.min(excess, 10) do redis.call('LPOP', key) end
end

-- An event of the fleet: us since 1970, kind ("began" or "completed", a run; "release" or
-- "configuration", of the worker that joined, is not that of the one before), worker or '', what
-- (the run's name or id; the release; a digest of the settings). On shard 0.
local function mark(kind, worker, what)
  append('marks', {NOW, kind, readable(worker), readable(what)}, 100)
end

-- Keeps the counts of this moment, for charts. `meta` has run and `sampled` (the last 10 s, since
-- 1970, of which there is a sample). The first call in 10 s writes to series:10, in 120 s and
-- 1,800 s to the coarser ones; the `last` one of a run to all of them, for what came since.
--
-- A sample has s since 1970, run, the counts, delayed requests, leases, workers that are alive, and
-- in the coarser lists the bytes that the server uses (0: it does not say).
local function keep_sample(meta, last)
  local SHORTEST = 10
  local now, former = math.floor(NOW / 1e6), number_of(meta.sampled) * SHORTEST
  local sample = {now, readable(meta.run)}
  for _, number in ipairs(redis.call('HMGET', COUNTS, 'created', 'finished', 'dead', 'dropped',
      'duplicates', 'retried', 'released', 'reclaimed', 'pages', 'items', 'errors')) do
    sample[#sample + 1] = number_of(number)
  end
  sample[#sample + 1] = redis.call('ZCARD', DELAYED)
  sample[#sample + 1] = number_of(redis.call('HGET', COUNTS, 'leased'))
  sample[#sample + 1] = live_workers()
  local memory
  -- An hour, a day, a month.
  for _, series in ipairs({{SHORTEST, 360}, {120, 720}, {1800, 1488}}) do
    local seconds, most = unpack(series)
    if last or math.floor(now / seconds) ~= math.floor(former / seconds) then
      if seconds > SHORTEST and not memory then
        local info = redis.pcall('INFO', 'memory') -- the user may not ask for it
        memory = number_of(type(info) == 'string' and string.match(info, 'used_memory:(%d+)'))
        sample[#sample + 1] = memory
      end
      append('series:' .. seconds, sample, most)
    end
  end
  redis.call('HSET', META, 'sampled', integer(math.floor(now / SHORTEST)))
end

-- Keeps the history of finished requests, by their identities: records is {{id, record}...}, of
-- which no more than the newest `most` stay.
local function keep_history(records, most)
  local times, all = past_key('history'), past_key('histories')
  for _, item in ipairs(records) do
    local id, record = unpack(item)
    redis.call('ZADD', times, integer(NOW), id)
    redis.call('HSET', all, id, record)
  end
  -- Some more each time where `most` was lowered.
  local excess = math.min(redis.call('ZCARD', times) - most, #records + 100)
  in_chunks(excess, function(first, last)
    redis.call('HDEL', all, unpack(redis.call('ZRANGE', times, 0, last - first)))
    redis.call('ZREMRANGEBYRANK', times, 0, last - first)
  end)
end

return {append = append, mark = mark, keep_sample = keep_sample, keep_history = keep_history}
