-- What is needed to tell, over several shards, whether a run is complete (Mattern's four counters).
--
-- Reply    {created, finished, starting}
-- Cost     O(1); reads only
local counts = redis.call('HMGET', COUNTS, 'created', 'finished', 'starting')
return {tonumber(counts[1] or 0), tonumber(counts[2] or 0), tonumber(counts[3] or 0)}
