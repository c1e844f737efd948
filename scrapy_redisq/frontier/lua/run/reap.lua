-- Takes the leases of workers past their deadline back to the front of their queues.
--
-- Input    run, ttl (us), max_deliveries, dead_max
-- Reply    {reclaimed, dead, leases left to reclaim}; {0, 0, 0} if somebody reaped within the
--          last second, or Redis was away so that nobody could give a sign of life
-- Cost     at most 100 leases a call, or about 4 MB of them
-- Retry    safe
-- Include  shared/keys shared/bounds shared/clock shared/counts shared/records shared/queues
--          shared/dead shared/workers shared/slots/tokens

local meta = redis.call('HMGET', META, 'run', 'sign', 'patient')
if meta[1] ~= input.run then return {0, 0, 0} end
local left_of_it = redis.call('PTTL', REAPED) -- longer if the clock has gone back
if left_of_it > 0 and left_of_it <= 1000 then return {0, 0, 0} end
redis.call('DEL', REAPED) -- a first write that removes: reaping goes on at maxmemory
if ms_until_dead(meta[2], meta[3]) > 0 then return {0, 0, 0} end
redis.call('SET', REAPED, 1, 'PX', 1000)

local reclaimed, dead, left, bytes = 0, 0, 0, 0
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '-inf', NOW, 'LIMIT', 0, 10)) do
  -- Fenced: should the worker come back, it is told to join again under a new id.
  fence(worker)
  local key, back = leases_of(worker), {}
  for _, id in ipairs(lease_ids(worker)) do
    if reclaimed + dead >= 100 or bytes >= MOST_BYTES then break end
    local record = redis.call('HGET', key, id)
    local slot, priority, entry = parse_record(record)
    bytes = bytes + #record
    redis.call('HDEL', key, id)
    if not slot then
      condemn('', record, key, input.dead_max, worker)
      dead = dead + 1
    else
      local deliveries = deliveries_of(entry) + 1
      count_leases(slot, -1)
      if deliveries >= input.max_deliveries then
        bury(slot, priority, with_deliveries(entry, deliveries), {reason = 'deliveries',
          worker = worker, lease = id,
          detail = 'its worker died ' .. deliveries .. ' times'}, input.dead_max)
        count('finished', 1)
        dead = dead + 1
      else
        back[#back + 1] = record_of(slot, priority, with_deliveries(entry, deliveries))
        reclaimed = reclaimed + 1
      end
    end
  end
  put_back(back)
  local still = leases_held(worker)
  left = left + still
  if still == 0 then
    remove_worker(worker, true)
    return_tokens(worker)
  end
end
count('reclaimed', reclaimed)
local counts = flush_counts()
if added > 0 or dead > 0 then wake(counts) end
return {reclaimed, dead, left}
