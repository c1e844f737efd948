-- Samples of the counts of a shard, oldest first: see shared/sample.lua.
--
-- Input    seconds (between two: which list), most (of the newest)
-- Reply    msgpack arrays, as they are stored
-- Cost     O(samples), at most 1,488; reads only
-- Include  shared/keys

local key = past_key('series:' .. input.seconds)
return redis.call('LRANGE', key, -input.most, -1)
