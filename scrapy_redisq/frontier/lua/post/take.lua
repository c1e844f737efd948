-- Hands out posts that are due: links of pages of this shard to other shards. Nobody has reported
-- them safe in time: the worker that sent them is dead, or those shards are away.
--
-- Input    run, most, hold (us until other workers may take what this hands out)
-- Reply    {id, links, id, links...}; {} if the run is gone
-- Cost     O(posts handed out), or about 4 MB of them
-- Retry    safe: what was handed out in a reply that was lost becomes due again
-- Memory   the first write removes: a full server's links go to other servers that may have room
-- Include  shared/counts shared/post

if redis.call('HGET', META, 'run') ~= input.run then return {} end
local reply, bytes = {}, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', POST, '-inf', NOW, 'LIMIT', 0, input.most)) do
  if bytes >= MOST_BYTES then break end
  local links = redis.call('HGET', POSTED, id)
  if links then
    redis.call('ZREM', POST, id)
    redis.call('ZADD', POST, NOW + input.hold, id)
    reply[#reply + 1], reply[#reply + 2] = id, links
    bytes = bytes + #links
  else -- another program has deleted it
    remove_posts({id})
  end
end
flush_counts()
return reply
