-- How full a shard and its server are, for whoever wants to add to it.
--
-- Input    (nothing)
-- Reply    {requests that are not finished, bytes of memory that the server uses, its maxmemory (0:
--          it has none; both 0: it does not say)}
-- Cost     O(1); reads only
-- Include  shared/keys shared/texts

local counts = redis.call('HMGET', COUNTS, 'created', 'finished')
local info = redis.pcall('INFO', 'memory') -- the user may not ask for it
local function told(name)
  return type(info) == 'string' and tonumber(string.match(info, name .. ':(%d+)')) or 0
end
return {math.max(0, number_of(counts[1]) - number_of(counts[2])), told('used_memory'),
  told('maxmemory')}
