-- A worker leaves: its leases go back to the front, without penalty.
--
-- Input    worker, run, dead_max, returns (it comes back at once under another id)
-- Reply    leases left; to be called again while there are some
-- Cost     at most 100 leases a call, or about 4 MB of them
-- Retry    safe
-- Include  shared/counts shared/queues shared/workers shared/leases shared/slots/state

if redis.call('HGET', META, 'run') ~= input.run then return 0 end
take_back(input.worker)
local left = leases_held(input.worker)
-- Until the last call it stays a worker like any other: whoever is fenced is reaped as dead.
if left == 0 then
  remove_worker(input.worker, input.returns)
  return_tokens(input.worker)
  redis.call('HSET', META, 'left', integer(NOW))
end
local counts = flush_counts()
local finished = all_finished()
if added > 0 or finished then wake(counts, finished) end
return left
