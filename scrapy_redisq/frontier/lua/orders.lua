-- Orders of people: of workers, "quiet" (claim nothing, and finish what they hold), "work" (claim
-- again) or "stop" (leave, as at SIGTERM); of the crawl, to shard 0, "pause" (no worker begins
-- anything) or "resume"; of a shard, "mend" (its key that was damaged is in order again: see
-- shared/damage.lua).
--
-- Each worker is told by the reply to its next exchange with this shard. A worker that was told to
-- stop is told nothing else: it may not have heard of it yet, and would go on.
--
-- Input    what, workers {worker...} (false: all that are registered)
-- Reply    of workers, how many were told; of a pause, 1, or 0 if there is no frontier; of a mend,
--          the key, '' if there was none
-- Cost     O(workers)
-- Retry    safe; a mend replies ''
-- Memory   the first write removes
-- Include  shared/workers

-- Without the right to publish they hear it a little later, when they exchange anyway.
local function announce_order(to)
  redis.pcall('PUBLISH', WAKE_CHANNEL, to and 'told ' .. to or 'told')
end

local meta = fields_of(META, 'corrupt', 'paused', 'format')
if input.what == 'mend' then
  redis.call('HDEL', META, 'corrupt')
  return meta.corrupt or ''
elseif input.what == 'pause' or input.what == 'resume' then
  if not meta.format then return 0 end
  redis.call('HDEL', META, 'paused', 'stuck') -- slots that are set aside are not tried meanwhile
  if input.what == 'pause' then redis.call('HSET', META, 'paused', meta.paused or integer(NOW)) end
  announce_order()
  return 1
end
local told = 0
for _, worker in ipairs(input.workers or redis.call('ZRANGE', WORKERS, 0, -1)) do
  local key = worker_key(worker)
  -- A worker that is not there, or was taken for dead, will be another one when it comes back.
  if is_member(worker) and (input.what == 'stop' or redis.call('HGET', key, 'told') ~= 'stop') then
    redis.call('HDEL', key, 'told')
    redis.call('HSET', key, 'told', input.what)
    told = told + 1
    if input.workers then announce_order(worker) end
  end
end
if told > 0 and not input.workers then announce_order() end
return told
