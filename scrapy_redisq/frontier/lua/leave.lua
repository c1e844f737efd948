-- A worker leaves: what it still holds goes back, without penalty, to the front.
--
-- Input    worker, run, complete (with several shards: the sums agree on all of them)
-- Reply    {leases left, 1 if the run is now complete}; to be called again while leases are left
-- Cost     at most 100 leases a call
-- Retry    safe
-- Error    a foreign key is in the way; nothing was given back by this call

if redis.call('HGET', META, 'run') ~= input.run then return {0, 0} end
local key = leases_of(input.worker)
local ids = {}
for _, id in ipairs(redis.call('HKEYS', key)) do
  if #ids < 100 then ids[#ids + 1] = id end
end
if #ids > 0 then
  table.sort(ids, function(a, b) return tonumber(string.match(a, '^%d+'))
    < tonumber(string.match(b, '^%d+')) end)
  local foreign = foreign_queue(queues_of_leases(input.worker, ids))
  if foreign then return foreign_error(foreign) end
  local records = redis.call('HMGET', key, unpack(ids))
  redis.call('HDEL', key, unpack(ids))
  for _, record in ipairs(records) do count_leases(origin_of(record), -1) end
  put_back(records)
  count('released', #ids)
end
local left = redis.call('HLEN', key)
if left == 0 then
  remove_worker(input.worker)
  return_tokens(input.worker)
end
local counts = flush_counts()
local complete = left == 0 and input.complete and all_finished(counts) and live_workers() == 0
  and redis.call('HGET', META, 'seeded') == '1'
if complete then redis.call('HSET', META, 'state', 'complete', 'ended', integer(NOW)) end
if added > 0 then wake(counts) end
return {left, complete and 1 or 0}
