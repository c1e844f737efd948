-- Tells workers what to do: "quiet" (claim nothing, and finish what they hold), "work" (claim
-- again) or "stop" (leave, as at SIGTERM). Each is told by the reply to its next exchange with this
-- shard. A worker that was told to stop is told nothing else: it may not have heard of it yet, and
-- would go on.
--
-- Input    what, workers {worker...} (false: all that are registered)
-- Reply    how many were told
-- Cost     O(workers)
-- Retry    safe
-- Memory   the first write removes
-- Include  shared/keys shared/workers

local told = 0
for _, worker in ipairs(input.workers or redis.call('ZRANGE', WORKERS, 0, -1)) do
  local key = worker_key(worker)
  -- A worker that is not there, or was taken for dead, will be another one when it comes back.
  local known = is_member(worker) and redis.call('HMGET', key, 'seq', 'told')
  if known and known[1] and (known[2] ~= 'stop' or input.what == 'stop') then
    redis.call('HDEL', key, 'told')
    redis.call('HSET', key, 'told', input.what)
    told = told + 1
    -- Without the right to publish they hear it a little later, when they exchange anyway.
    if input.workers then redis.pcall('PUBLISH', WAKE_CHANNEL, 'told ' .. worker) end
  end
end
if told > 0 and not input.workers then redis.pcall('PUBLISH', WAKE_CHANNEL, 'told') end
return told
