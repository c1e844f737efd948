-- Samples of the counts of a shard, oldest first: see shared/sample.lua.
--
-- Input    seconds (between two: which list), most (of the newest)
-- Reply    msgpack arrays, as they are stored
-- Cost     O(samples), at most 1,488; reads only
-- Error    another key is in the place of the list
-- Include  shared/keys shared/foreign

local key = past_key('series:' .. input.seconds)
local foreign = foreign_of({'LLEN', key})
if foreign then return foreign_error(foreign) end
return redis.call('LRANGE', key, -input.most, -1)
