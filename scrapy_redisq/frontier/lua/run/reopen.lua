-- Opens a run, or a shard that was sealed, for what is to be added to it: see shared/run_state.lua.
--
-- Input    run, shard (its number), visited (what shard 0 replied; 0 on shard 0 itself)
-- Reply    the number of this visit of shard 0; on others 1; 0 if the run is gone
-- Cost     O(1)
-- Retry    safe
-- Memory   the first write removes
-- Include  shared/run_state

local meta = fields_of(META, 'run', 'state', 'sealed', 'visited')
if meta.run ~= input.run then return '0' end
if input.shard == 0 then
  redis.call('HDEL', META, 'sealed')
  if meta.state == 'complete' then redis.call('HSET', META, 'state', 'open') end
  return integer(next_visit(meta.visited))
end
-- Sealed again since shard 0 was visited: it has to be visited again.
if meta.sealed and number_of(meta.sealed) < input.visited then
  redis.call('HDEL', META, 'sealed')
end
return '1'
