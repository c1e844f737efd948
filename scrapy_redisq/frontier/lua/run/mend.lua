-- A person says that a key which was damaged is in order again: see shared/guard.lua.
--
-- Input    (nothing)
-- Reply    the key, '' if there was none
-- Cost     O(1)
-- Retry    replies ''
-- Memory   the first write removes
-- Include  shared/keys

local key = redis.call('HGET', META, 'corrupt')
redis.call('HDEL', META, 'corrupt')
return key or ''
