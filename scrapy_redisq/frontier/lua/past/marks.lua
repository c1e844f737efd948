-- What happened to the fleet, oldest first: see shared/marks.lua.
--
-- Input    (nothing)
-- Reply    msgpack arrays, as they are stored
-- Cost     O(marks), at most 100; reads only
-- Error    another key is in the place of the list
-- Include  shared/keys shared/foreign

local foreign = foreign_of({'LLEN', marks_key()})
if foreign then return foreign_error(foreign) end
return redis.call('LRANGE', marks_key(), 0, -1)
