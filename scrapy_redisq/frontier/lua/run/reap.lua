-- Takes the leases of workers past their deadline back to the front of their queues, and the tokens
-- of such workers, also of crawls that share their slots.
--
-- Input    run, ttl (us), max_deliveries, dead_max
-- Reply    {reclaimed, dead, leases left to reclaim}; {0, 0, 0} if somebody else has, or Redis was
--          away so that nobody could give a sign of life
-- Cost     at most 100 leases a call, or about 4 MB of them, and the ids of a worker's others
-- Retry    safe
-- Include  shared/counts shared/queues shared/workers shared/leases shared/slots/state

local meta = fields_of(META, 'run', 'sign', 'patient')
if meta.run ~= input.run then return {0, 0, 0} end
redis.call('ZREM', WORKERS, '') -- a first write that removes: reaping goes on at maxmemory
if ms_until_dead(meta.sign, meta.patient) > 0 then return {0, 0, 0} end

local reclaimed, dead, left = 0, 0, 0
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, '-inf', NOW, 'LIMIT', 0, 10)) do
  -- Fenced: should the worker come back, it is told to join again under a new id.
  fence(worker)
  local back, given_up = take_back(worker, true)
  local still = leases_held(worker)
  reclaimed, dead, left = reclaimed + back, dead + given_up, left + still
  if still == 0 then
    remove_worker(worker, true)
    return_tokens(worker)
  end
end
-- Nobody may start the crawl again of which they were.
for _, worker in ipairs(SHARED
    and redis.call('ZRANGEBYSCORE', ALL_WORKERS, '-inf', NOW, 'LIMIT', 0, 10) or {}) do
  return_tokens(worker)
end
local counts = flush_counts()
if added > 0 or dead > 0 then wake(counts) end
return {reclaimed, dead, left}
