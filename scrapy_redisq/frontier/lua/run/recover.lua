-- Makes claimable again what somebody has cut off by deleting `levels:SLOT`, `ready` or `workers`.
--
-- Input    queues {{slot, priority}...}, workers {worker... (that have leases)} (at most a few
--          hundred in all)
-- Reply    how many queues and workers were found that nobody would have found
-- Cost     O(queues + workers)
-- Retry    safe
-- Include  shared/keys shared/clock shared/workers

local found = 0
for _, queue in ipairs(input.queues) do
  local slot, priority = queue[1], queue[2]
  local length = redis.pcall('LLEN', queue_of(slot, priority))
  if type(length) == 'number' and length > 0 then
    local level = redis.pcall('ZADD', levels_of(slot), 'NX', -tonumber(priority), priority)
    local ready = redis.call('ZADD', READY, 'NX', NOW, slot)
    if level == 1 or ready == 1 then found = found + 1 end
  end
end
for _, worker in ipairs(input.workers) do
  -- Long overdue, so that what it holds is taken over.
  if leases_held(worker) > 0 then found = found + redis.call('ZADD', WORKERS, 'NX', 0, worker) end
end
return found
