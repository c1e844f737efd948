-- A worker leaves: what it still holds goes back, without penalty, to the front.
--
-- Input    worker, run, dead_max, complete (with several shards: the sums agree on all of them)
-- Reply    {leases left, 1 if the run is now complete}; to be called again while leases are left
-- Cost     at most 100 leases a call, or about 4 MB of them
-- Retry    safe
-- Error    another key is in the place of one that all slots share; nothing was given back

local in_the_way = foreign_key()
if in_the_way then return foreign_error(in_the_way) end
if redis.call('HGET', META, 'run') ~= input.run then return {0, 0} end
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
if left == 0 then
  remove_worker(input.worker)
  return_tokens(input.worker)
end
local counts = flush_counts()
local complete = left == 0 and input.complete and all_finished() and live_workers() == 0
  and redis.call('HGET', META, 'seeded') == '1'
if complete then
  redis.call('HSET', META, 'state', 'complete', 'ended', integer(NOW))
  -- What others have done to the counts is no request that waits.
  if counts.created ~= counts.finished then
    redis.call('HSET', COUNTS, 'created', integer(counts.finished))
  end
end
if added > 0 then wake(counts) end
return {left, complete and 1 or 0}
