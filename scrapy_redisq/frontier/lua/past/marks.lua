-- What happened to the fleet, oldest first: see shared/marks.lua.
--
-- Input    (nothing)
-- Reply    msgpack arrays, as they are stored
-- Cost     O(marks), at most 100; reads only
-- Include  shared/keys

return redis.call('LRANGE', past_key('marks'), 0, -1)
