-- A worker leaves: what it still holds goes back, without penalty, to the front.
--
-- Input    worker, run, dead_max
-- Reply    leases left; to be called again while there are some
-- Cost     at most 100 leases a call, or about 4 MB of them
-- Retry    safe
-- Error    another key is in the place of one that all slots share; nothing was given back

local in_the_way = foreign_key()
if in_the_way then return foreign_error(in_the_way) end
if redis.call('HGET', META, 'run') ~= input.run then return 0 end
local key, back, bytes = leases_of(input.worker), {}, 0
for _, id in ipairs(lease_ids(input.worker) or {}) do
  if #back >= 100 or bytes >= MOST_BYTES then break end
  local record = redis.call('HGET', key, id)
  local slot = origin_of(record)
  bytes = bytes + #record
  redis.call('HDEL', key, id)
  if slot then
    count_leases(slot, -1)
    back[#back + 1] = record
  else
    condemn('', record, key, input.dead_max, input.worker)
  end
end
put_back(back)
count('released', #back)
local left = leases_held(input.worker)
-- What it has claimed is no longer its own when others come to its pages.
if left > 0 then redis.pcall('HSET', worker_key(input.worker), 'fenced', 1) end
if left == 0 then
  remove_worker(input.worker)
  return_tokens(input.worker)
  redis.call('HSET', META, 'left', integer(NOW))
end
local counts = flush_counts()
if added > 0 or all_finished() then wake(counts) end
return left
