-- What people have done to the frontier, oldest first: see past/note.lua.
--
-- Input    (nothing)
-- Reply    msgpack arrays, as they are stored
-- Cost     O(actions), at most 1,000; reads only
-- Include  shared/keys

return redis.call('LRANGE', past_key('actions'), 0, -1)
