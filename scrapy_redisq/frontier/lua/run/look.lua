-- What a worker needs to know of every shard to tell whether a run of several shards is complete.
--
-- Input    (nothing)
-- Reply    {1 if nothing is left on this shard and nobody may add to it, how much there has been
--          to do}
-- Cost     O(workers)
-- Error    another key is in the place of one that all slots share
-- Include  shared/keys shared/texts shared/foreign shared/finished

local foreign = foreign_key()
if foreign then return foreign_error(foreign) end
local counts = redis.call('HMGET', COUNTS, 'created', 'requeued')
return {all_finished() and 1 or 0, number_of(counts[1]) + number_of(counts[2])}
