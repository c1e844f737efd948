-- Marks a run complete if nothing is left of it and nobody is there: see shared/run_state.lua.
--
-- Input    run ('' on shard 0: whichever there is), first (this is shard 0), seal (the number that
--          shard 0 gave; 0: not yet), producer (does not end a run that workers with
--          REDISQ_KEEP_ALIVE have left), newcomer (was not in the run: does not end one in which
--          requests are missing, so that a worker says so)
-- Reply    {what, run, number, shards, 'True' if these are on several servers, counts {name,
--          value...}}, what being
--            complete    the run is, by this call; only then there are counts
--            sealed      this shard is, with `number`; so must be all others, and then this must
--                        be called on shard 0 again
--            wait        with run '': it is, but Redis was away, and workers that have nothing left
--                        to do (they may be kept open) may still come back: again later
--            unfinished  it is not, or not known to be, or was complete before
-- Cost     O(workers), none of which is alive
-- Retry    safe
-- Memory   the first write removes, so that a run can end at maxmemory
-- Include  shared/counts shared/workers shared/run_state shared/slots/state past=shared/past

local meta = hash_of(META)
local function replied(what, number, counts)
  return {what, meta.run or '', number and integer(number) or 0, number_of(meta['config:shards']),
    meta['config:spread'] or '', counts or {}}
end

if meta.state ~= 'open' or meta.corrupt or (input.run ~= '' and meta.run ~= input.run)
    or (input.producer and meta.keep_alive)
    or (input.first and meta.seeded ~= '1')
    or (input.first and input.seal > 0 and meta.sealed ~= integer(input.seal)) then
  return replied('unfinished')
end
if live_workers() > 0 or redis.call('EXISTS', READY, DELAYED, POST) > 0 then
  return replied('unfinished')
end
-- It ended with the last sign of life, not when somebody came to look.
local workers, ended, longest = redis.call('ZRANGE', WORKERS, 0, -1, 'WITHSCORES'), 0, 0
for i = 1, #workers, 2 do
  if leases_held(workers[i]) > 0 then return replied('unfinished') end
  local ttl = number_of(redis.call('HGET', worker_key(workers[i]), 'ttl'))
  longest = math.max(longest, ttl)
  ended = math.max(ended, tonumber(workers[i + 1]) - ttl)
end
local counts = fields_of(COUNTS, 'created', 'finished')
if input.newcomer and number_of(counts.created) > number_of(counts.finished) then
  return replied('unfinished')
end
redis.call('HDEL', META, 'stuck')
-- At least a second, or who asks again would begin to wait anew each time.
if input.run == '' and longest > 0
    and ms_until_dead(meta.sign, meta.patient, math.max(longest, 1000000)) > 0 then
  return replied('wait')
end

for i = 1, #workers, 2 do
  remove_worker(workers[i]) -- one that comes back after all has to go by shard 0
  return_tokens(workers[i])
end
-- Counts that another program has changed are no requests that wait.
counts = flush_counts()
if counts.created ~= counts.finished then
  redis.call('HSET', COUNTS, 'created', integer(counts.finished))
end
past().keep_sample(meta, true)

ended = math.max(ended, number_of(meta.left or meta.began))
local shards = number_of(meta['config:shards'])
if input.first and (shards == 1 or input.seal > 0) then
  redis.call('HDEL', META, 'sealed')
  redis.call('HSET', META, 'state', 'complete', 'ended', integer(math.min(ended, NOW)))
  if meta.name then
    redis.call('ZADD', ENDED, NOW, meta.name)
    redis.call('ZREMRANGEBYRANK', ENDED, 0, -1001) -- the last thousand never begin again
  end
  past().mark('completed', '', meta.name or meta.run)
  return replied('complete', nil, redis.call('HGETALL', COUNTS))
end
local number = input.first and next_visit(meta.visited)
  or math.max(input.seal, number_of(meta.sealed))
redis.call('HSET', META, 'left', integer(ended), 'sealed', integer(number))
return replied('sealed', number)
