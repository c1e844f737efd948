-- Adds requests from outside: seed producers and the command line.
--
-- Input    run, queues, enqueue, seen (see common.lua)
-- Reply    msgpack map: status "ok" with `outcome` of each ('1' new, '0' duplicate), "lost" if
--          the run has ended, "corrupt" with `key` if a foreign key is in the way
-- Cost     O(requests)
-- Retry    safe for requests with a fingerprint: they are found to be duplicates

local meta = redis.call('HMGET', META, 'run', 'order', 'generation', 'state')
if meta[1] ~= input.run or meta[4] ~= 'open' then return cmsgpack.pack({status = 'lost'}) end
local foreign = foreign_queue(input.queues)
if foreign then return cmsgpack.pack({status = 'corrupt', key = foreign}) end
local outcome = enqueue(seen_add, meta[3], meta[2])
local counts = flush_counts()
if added > 0 then wake(counts) end
return cmsgpack.pack({status = 'ok', outcome = outcome})
