-- What people have done to the frontier, oldest first: see past/note.lua.
--
-- Input    (nothing)
-- Reply    msgpack arrays, as they are stored
-- Cost     O(actions), at most 1,000; reads only
-- Error    another key is in the place of the list
-- Include  shared/keys shared/foreign

local foreign = foreign_of({'LLEN', past_key('actions')})
if foreign then return foreign_error(foreign) end
return redis.call('LRANGE', past_key('actions'), 0, -1)
