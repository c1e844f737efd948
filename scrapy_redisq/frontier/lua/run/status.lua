-- A consistent picture of a shard, for people.
--
-- Input    (nothing)
-- Reply    msgpack map: meta, counts, delayed, aside and paused (how many slots are), posted
--          (posts), workers {{id, deadline, leased, {field, value...}}}, now; {} if there is no
--          frontier
-- Cost     O(workers); reads only
-- Include  shared/workers

local meta = redis.call('HGETALL', META)
if #meta == 0 then return cmsgpack.pack({}) end
local workers, members = {}, redis.call('ZRANGE', WORKERS, 0, 999, 'WITHSCORES')
for i = 1, #members, 2 do
  local fields = redis.call('HGETALL', worker_key(members[i]))
  for j = 1, #fields do fields[j] = readable(fields[j]) end
  workers[#workers + 1] = {readable(members[i]), tonumber(members[i + 1]),
    leases_held(members[i]), fields}
end
return cmsgpack.pack({meta = meta, counts = redis.call('HGETALL', COUNTS),
  delayed = redis.call('ZCARD', DELAYED), aside = redis.call('ZCARD', ASIDE),
  paused = redis.call('ZCARD', PAUSED), posted = redis.call('ZCARD', POST),
  workers = workers, now = NOW})
