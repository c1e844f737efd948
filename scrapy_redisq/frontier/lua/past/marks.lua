-- What happened to the fleet, oldest first: see shared/marks.lua.
--
-- Input    (nothing)
-- Reply    msgpack arrays, as they are stored
-- Cost     O(marks), at most 100; reads only
-- Error    another key is in the place of the list
-- Include  shared/keys shared/foreign

local foreign = foreign_of({'LLEN', past_key('marks')})
if foreign then return foreign_error(foreign) end
return redis.call('LRANGE', past_key('marks'), 0, -1)
