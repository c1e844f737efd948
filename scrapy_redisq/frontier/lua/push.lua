-- Adds requests from outside: seed producers and the command line.
--
-- Input    run, queues, enqueue, seen (parameters of the dupefilter, see shared/seen/)
-- Reply    msgpack map: status "ok" with `outcome` of each ('1' new, '0' duplicate), "lost" if
--          the run has ended, "sealed" if the shard must be opened first (see run/open.lua),
--          "corrupt" with `key` if another key is in the way: nothing was added
-- Cost     O(requests)
-- Retry    safe: what was added is found to be a duplicate
-- Include  shared/keys shared/foreign shared/counts shared/queues shared/workers shared/identities
--          shared/enqueue dupefilter=shared/seen/BACKEND

local meta = redis.call('HMGET', META, 'run', 'order', 'generation', 'state', 'sealed')
if meta[1] ~= input.run or meta[4] ~= 'open' then return cmsgpack.pack({status = 'lost'}) end
if meta[5] then return cmsgpack.pack({status = 'sealed'}) end
local keys = {} -- a person is told at once, a worker need not wait
for _, queue in ipairs(input.queues) do
  for _, word in ipairs({'LLEN', queue_of(queue[1], queue[2]), 'ZCARD', levels_of(queue[1])}) do
    keys[#keys + 1] = word
  end
end
local foreign = foreign_key(keys)
if foreign then return cmsgpack.pack({status = 'corrupt', key = foreign}) end
local seen = dupefilter()
local added_all, outcome = pcall(enqueue, seen.add, meta[1], meta[3], meta[2])
if not added_all then
  return cmsgpack.pack({status = 'corrupt', key = key_at_fault(seen.undo, outcome)})
end
local counts = flush_counts()
if added > 0 then wake(counts) end
return cmsgpack.pack({status = 'ok', outcome = outcome})
