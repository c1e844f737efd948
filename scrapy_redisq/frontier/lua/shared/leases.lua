-- Gives back what a worker holds.
--
-- Include  shared/keys shared/bounds shared/counts shared/records shared/queues shared/dead
--          shared/workers

-- Gives back, to the front, about 100 of the leases that a worker holds, or about 4 MB of them.
local function give_back_leases(worker, dead_max)
  local key, back, bytes = leases_of(worker), {}, 0
  for _, id in ipairs(lease_ids(worker)) do
    if #back >= 100 or bytes >= MOST_BYTES then break end
    local record = redis.call('HGET', key, id)
    local slot = origin_of(record)
    bytes = bytes + #record
    redis.call('HDEL', key, id)
    if slot then
      count_leases(slot, -1)
      back[#back + 1] = record
    else
      condemn('', record, key, dead_max, worker)
    end
  end
  put_back(back)
  count('released', #back)
end
