-- A look at one shard, for a worker that wants to know whether a run of several is complete.
--
-- Input    (all empty where only one look is taken) worker, mark (of the first look, which is kept
--          with the worker), marked (the same, of the second: a shard that has lost the end of its
--          log in between has lost it, too, or nothing that was done before the first)
-- Reply    {1 if nothing is left on this shard and nobody may add to it, how much there has been
--          to do, when its run began (us by shard 0's clock; 0: it has none), its origin (the same
--          of the first of the runs that shard 0 has lost one after the other, and that it goes on
--          with; 0: it goes on with all that shards have)}
-- Cost     O(workers)
-- Include  shared/workers

local counts = fields_of(COUNTS, 'created', 'requeued')
local known, idle = worker_key(input.worker), all_finished()
if input.mark ~= '' and idle then
  idle = redis.call('HEXISTS', known, 'seq') == 1
  if idle then redis.call('HSET', known, 'looked', input.mark) end
elseif input.marked ~= '' then
  idle = idle and redis.call('HGET', known, 'looked') == input.marked
end
local meta = fields_of(META, 'began', 'inherits')
local inherits = meta.inherits or ''
local origin = inherits ~= '' and (string.match(inherits, '^since (%d+)$') or '0')
return {idle and 1 or 0, number_of(counts.created) + number_of(counts.requeued),
  number_of(meta.began), number_of(origin or meta.began)}
