-- Empties a frontier without workers, in bounded steps, and leaves it as a complete run.
--
-- Input    force (although workers are alive), forget (what people have said about slots, too)
-- Reply    {status, left}: "in_use" with the number of live workers, "more" to be called again,
--          "done"
-- Cost     at most a few hundred slots, 1,000 priorities of them and 100 workers a call; what they
--          hold is freed by another thread
-- Retry    safe; interrupted, the state "resetting" makes the next one who joins carry on

if redis.call('EXISTS', META) == 0 then return {'done', 0} end
if not input.force and live_workers() > 0 then return {'in_use', live_workers()} end
redis.call('HDEL', META, 'ended') -- a first write that removes: works at maxmemory too
redis.call('HSET', META, 'state', 'resetting')

local said = 0
for _, key in ipairs(input.forget and {RULED, PAUSED} or {}) do
  for _, slot in ipairs(redis.call('ZRANGE', key, 0, 99)) do
    redis.call('DEL', slot_key(slot))
    redis.call('ZREM', key, slot)
    said = said + 1
  end
end
local slots = redis.call('ZRANGE', READY, 0, 99)
local left = 1000 -- levels
for _, slot in ipairs(slots) do
  if left == 0 then break end
  local levels = levels_of(slot)
  local priorities = redis.pcall('ZRANGE', levels, 0, left - 1)
  for _, priority in ipairs(priorities) do redis.call('UNLINK', queue_of(slot, priority)) end
  left = left - #priorities
  if left > 0 then
    redis.call('UNLINK', levels)
    forget_slot(slot)
    redis.call('ZREM', READY, slot)
  else
    redis.call('ZREMRANGEBYRANK', levels, 0, #priorities - 1)
  end
end
local workers = redis.call('ZRANGE', WORKERS, 0, 99)
for _, worker in ipairs(workers) do
  for _, slot in ipairs(redis.pcall('HKEYS', tokens_key(worker))) do forget_slot(slot) end
  redis.call('UNLINK', leases_of(worker), worker_key(worker), tokens_key(worker))
  redis.call('ZREM', WORKERS, worker)
end
if said + #slots + #workers > 0 then return {'more', said + #slots + #workers} end
redis.call('UNLINK', DELAYED, BUSY, DEAD, LETTERS, COUNTS, LIMITS, ASIDE, ROBOTS, ROBOTS_UNTIL)
redis.call('HSET', META, 'state', 'complete')
return {'done', 0}
