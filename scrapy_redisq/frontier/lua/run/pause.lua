-- Pauses a crawl, or lets it go on: while it is paused no worker claims anything of this shard.
--
-- Input    paused (what it is to be)
-- Reply    1; 0 if there is no frontier
-- Cost     O(1)
-- Retry    safe
-- Memory   the first write removes
-- Include  shared/keys shared/texts shared/clock

if redis.call('EXISTS', META) == 0 then return 0 end
local since = redis.call('HGET', META, 'paused') or integer(NOW)
redis.call('HDEL', META, 'paused')
if input.paused then redis.call('HSET', META, 'paused', since) end
-- Without the right to publish workers hear it a little later, when they exchange anyway.
redis.pcall('PUBLISH', WAKE_CHANNEL, 'told')
return 1
