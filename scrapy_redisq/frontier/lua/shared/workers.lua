-- Workers of the run: which there are, their leases, which are dead; and whether all is finished.
--
-- Include  shared/counts

-- Whether a worker is in the run: `workers` alone says so. A worker that was taken for dead is
-- fenced: it stays there with the deadline 0 while it has leases, so that these are found.
local function is_member(worker)
  return (tonumber(redis.call('ZSCORE', WORKERS, worker) or '') or 0) > 0
end

-- Writes the worker's deadline, as the first write of a script. -> whether Redis is full. Redis
-- refuses a script that adds at maxmemory until it has written something: so a refused deadline is
-- removed first, after which nothing in the script is refused.
local function sign_of_life(worker)
  local deadline = integer(NOW + input.ttl)
  local full = type(redis.pcall('ZADD', WORKERS, deadline, worker)) ~= 'number'
  if full then
    redis.call('ZREM', WORKERS, worker)
    redis.call('ZADD', WORKERS, deadline, worker)
  end
  if SHARED then redis.call('ZADD', ALL_WORKERS, deadline, worker) end
  return full
end

local function fence(worker) redis.call('ZADD', WORKERS, 0, worker) end

-- A worker's flag ('starting': it may still add start requests; 'waiting': it found nothing to
-- claim) is a field of the worker and a sum over the workers in counts.
local function set_flag(worker, name, was, is)
  if was ~= is then
    redis.call('HSET', worker_key(worker), name, is and 1 or 0)
    count(name, is and 1 or -1)
  end
end

-- If the worker `may_return`, the order that people have given it stays for a day.
local function remove_worker(worker, may_return)
  local key = worker_key(worker)
  local fields = fields_of(key, 'starting', 'waiting', 'told')
  if fields.starting == '1' then count('starting', -1) end
  if fields.waiting == '1' then count('waiting', -1) end
  redis.call('ZREM', WORKERS, worker)
  redis.call('DEL', key)
  if may_return and fields.told then
    redis.call('HSET', key, 'told', fields.told)
    redis.call('PEXPIRE', key, 86400000)
  end
end

local function live_workers() return redis.call('ZCOUNT', WORKERS, NOW, '+inf') end

-- -> ms until a worker that gives no sign of life is dead; 0: one is, or there is none. To be
-- called whenever a worker gives one.
-- While Redis is away or stopped nobody can give one, and somebody is the first to come back: after
-- half a TTL without any no worker is dead before `patient`. A shorter gap leaves each a quarter of
-- its TTL to come back. `sign`: when the last one was, more or less. `ttl`: input.ttl by default.
local function ms_until_dead(sign, patient, ttl)
  sign, patient, ttl = tonumber(sign or ''), tonumber(patient or ''), ttl or input.ttl
  if NOW - (sign or NOW) > ttl / 2 then
    patient = NOW + math.max(ttl / 4, math.min(1000000, ttl / 2))
    redis.call('HSET', META, 'patient', integer(patient))
  end
  if math.abs(NOW - (sign or 0)) > ttl / 16 then
    redis.call('HSET', META, 'sign', integer(NOW))
    if SHARED then redis.call('HSET', CLOCK, 'sign', integer(NOW)) end
  end
  if NOW - SERVER_TIME ~= BEHIND then
    redis.call('HSET', CLOCK, 'behind', integer(NOW - SERVER_TIME))
  end
  local deadline = first_score(WORKERS) or NOW
  if SHARED then deadline = math.min(deadline, first_score(ALL_WORKERS) or NOW) end
  if patient and patient - NOW <= ttl then deadline = math.max(deadline, patient) end
  return math.max(0, math.ceil((deadline - NOW) / 1000))
end

local function leases_held(worker) return redis.call('HLEN', leases_of(worker)) end

-- Whether nothing is left to do on this shard: nothing waits, no worker holds a lease, and none may
-- still add start requests. This looks at keys and not at counts, which another program may have
-- changed. To be asked when everything else has been written.
local function all_finished()
  if redis.call('EXISTS', READY, DELAYED, POST) > 0 then return false end
  for _, worker in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do
    if redis.call('HGET', worker_key(worker), 'starting') == '1' or leases_held(worker) > 0 then
      return false
    end
  end
  redis.call('DEL', BUSY)
  redis.call('HDEL', COUNTS, 'leased')
  return true
end

-- Wakes idle workers, if there are any; busy workers ask by themselves. A user without the right to
-- publish gets no error: the other workers find the work by asking. If all is `finished`, workers
-- that want no work now, such as quiet ones, are told as well.
local function wake(counts, finished)
  if counts.waiting > 0 then redis.pcall('PUBLISH', WAKE_CHANNEL, '') end
  if finished and live_workers() > counts.waiting then
    redis.pcall('PUBLISH', WAKE_CHANNEL, 'told')
  end
end
