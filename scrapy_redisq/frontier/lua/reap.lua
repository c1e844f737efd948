-- Takes the leases of workers past their deadline back to the front of their queues.
--
-- Input    run, max_deliveries, dead_max
-- Reply    {reclaimed, dead, leases left to reclaim}; {0, 0, 0} if somebody reaped within the
--          last second
-- Cost     at most 100 leases a call
-- Retry    safe
-- Error    a foreign key is in the way of a worker's leases, which stay; other workers' were taken

if redis.call('HGET', META, 'run') ~= input.run then return {0, 0, 0} end
if redis.call('EXISTS', REAPED) == 1 then return {0, 0, 0} end
redis.call('DEL', REAPED) -- a first write that removes: reaping goes on at maxmemory
redis.call('SET', REAPED, 1, 'PX', 1000)

local reclaimed, dead, left, foreign = 0, 0, 0, nil
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '-inf', NOW, 'LIMIT', 0, 10)) do
  -- Fenced: should the worker come back, it is told to join again under a new id.
  redis.call('HSET', worker_key(worker), 'fenced', 1)
  local key, ids = leases_of(worker), {}
  for _, id in ipairs(redis.call('HKEYS', key)) do
    if reclaimed + dead + #ids < 100 then ids[#ids + 1] = id end
  end
  local in_the_way = foreign_queue(queues_of_leases(worker, ids))
  if in_the_way then
    foreign, ids = in_the_way, {}
  end
  if #ids > 0 then
    table.sort(ids, function(a, b) return tonumber(string.match(a, '^%d+'))
      < tonumber(string.match(b, '^%d+')) end)
    local records = redis.call('HMGET', key, unpack(ids))
    redis.call('HDEL', key, unpack(ids))
    local back = {}
    for i, record in ipairs(records) do
      local slot, priority, entry = parse_record(record)
      local deliveries = deliveries_of(entry) + 1
      count_leases(slot, -1)
      entry = with_deliveries(entry, deliveries)
      if deliveries >= input.max_deliveries then
        bury(slot, priority, entry, {reason = 'deliveries', worker = worker, lease = ids[i],
          detail = 'its worker died ' .. deliveries .. ' times'}, input.dead_max)
        count('finished', 1)
        dead = dead + 1
      else
        back[#back + 1] = record_of(slot, priority, entry)
        reclaimed = reclaimed + 1
      end
    end
    put_back(back)
  end
  left = left + redis.call('HLEN', key)
  if redis.call('HLEN', key) == 0 then
    remove_worker(worker)
    return_tokens(worker)
  end
end
count('reclaimed', reclaimed)
local counts = flush_counts()
if added > 0 or dead > 0 then wake(counts) end
if foreign then return foreign_error(foreign) end
return {reclaimed, dead, left}
