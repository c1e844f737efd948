-- Whether anything is left to do on this shard.
--
-- Include  shared/keys shared/workers

-- Whether no worker holds anything or may still add start requests.
local function all_idle()
  for _, worker in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do
    local known = redis.call('HMGET', worker_key(worker), 'seq', 'starting')
    if known[2] == '1' or leases_held(worker) > 0 then return false end
    if not known[1] then redis.call('ZREM', WORKERS, worker) end -- it never joined
  end
  return true
end

-- Whether nothing is left to do. Looked at, not counted: entries that another hand puts here bend
-- the counts. To be asked when everything else has been written.
local function all_finished()
  if redis.call('EXISTS', READY, DELAYED, POST) > 0 or not all_idle() then return false end
  redis.call('DEL', BUSY)
  redis.call('HDEL', COUNTS, 'leased')
  return true
end
