-- Adds requests from outside: seed producers and the command line.
--
-- Input    run, queues, enqueue, seen (parameters of the dupefilter, see shared/seen/), dead_max,
--          also (fingerprints that are only recorded, or false)
-- Reply    msgpack map: status "ok" with `outcome` of each ('1' new, '0' duplicate), "lost" if
--          the run has ended, "sealed" if the shard must be opened first (see run/reopen.lua)
-- Cost     O(requests)
-- Retry    safe: what was added is found to be a duplicate
-- Include  shared/counts shared/queues shared/workers shared/enqueue

local meta = fields_of(META, 'run', 'order', 'generation', 'older', 'rotates', 'state', 'sealed',
  'corrupt', 'budgets')
if meta.run ~= input.run or meta.state ~= 'open' then return cmsgpack.pack({status = 'lost'}) end
if meta.corrupt then corrupt(meta.corrupt) end
if meta.sealed then return cmsgpack.pack({status = 'sealed'}) end
local outcome = enqueue(meta)
local counts = flush_counts()
if added > 0 then wake(counts) end
return cmsgpack.pack({status = 'ok', outcome = outcome})
