-- Returns sample(meta, last): keeps the counts of this moment in series:SECONDS, for charts. To be
-- called when they are written, behind a script's first write. `meta` has run and `sampled` (the
-- last 10 s, since 1970, of which there is a sample). The first call in 10 s writes to series:10,
-- in 120 s and 1,800 s to the coarser ones; the `last` one of a run to all of them, for what came
-- since.
--
-- A sample is a msgpack array: s since 1970, run, the counts in COUNTED, delayed requests, leases,
-- workers that are alive, and in the coarser lists the bytes that the server uses (0: it does not
-- say). Counts begin anew with a run. Nothing rests on samples, so whatever is in the way of one is
-- passed over.
--
-- Include  shared/keys shared/texts shared/clock shared/workers shared/bounds

local SHORTEST = 10
local SERIES = {{SHORTEST, 360}, {120, 720}, {1800, 1488}} -- an hour, a day, a month
local COUNTED = {'created', 'finished', 'dead', 'dropped', 'duplicates', 'retried', 'released',
  'reclaimed', 'pages', 'items', 'errors'}

local function memory()
  local info = redis.pcall('INFO', 'memory')
  return number_of(type(info) == 'string' and string.match(info, 'used_memory:(%d+)'))
end

return function(meta, last)
  local now, former = math.floor(NOW / 1e6), number_of(meta.sampled) * SHORTEST
  local sample = {now, readable(meta.run)}
  local counts = redis.call('HMGET', COUNTS, 'leased', unpack(COUNTED))
  for i = 1, #COUNTED do sample[#sample + 1] = number_of(counts[i + 1]) end
  sample[#sample + 1] = redis.call('ZCARD', DELAYED)
  sample[#sample + 1] = number_of(counts[1])
  sample[#sample + 1] = live_workers()
  for _, series in ipairs(SERIES) do
    local seconds, most = series[1], series[2]
    if last or math.floor(now / seconds) ~= math.floor(former / seconds) then
      if seconds > SHORTEST then sample[#COUNTED + 6] = sample[#COUNTED + 6] or memory() end
      append(past_key('series:' .. seconds), sample, most)
    end
  end
  redis.call('HSET', META, 'sampled', integer(math.floor(now / SHORTEST)))
end
