-- What all scripts share: the keys of a shard, records, and moving entries between places.
--
-- KEYS[1]  the shard's meta key, redisq:{NAME:k}:meta; all other names derive from it, so they
--          share its hash tag and one shard is one Redis Cluster slot
-- ARGV[1]  one msgpack map, called `input` everywhere
--
-- An ENTRY is one byte, how often a worker died with it, followed by the serialised request,
-- which no script looks into. A RECORD is an entry with where it came from:
-- "PRIORITY:LENGTH-OF-SLOT:SLOT" .. ENTRY
--
--   meta            hash    format, run, state, seeded, generation, and the shared configuration
--   ready           zset    slot -> when it may be claimed next (microseconds)
--   levels:SLOT     zset    priorities of the slot that have entries (score = -priority)
--   queue:SLOT:P    list    entries; the next to be claimed is always the leftmost
--   delayed         zset    "ID:" .. record -> when it is due (microseconds)
--   leases:WORKER   hash    lease id -> record
--   workers         zset    worker -> its deadline (microseconds)
--   worker:WORKER   hash    host, pid, spider, since, ttl, seq, duplicates, starting, waiting,
--                           fenced, pages, items
--   busy            hash    slot -> leases out
--   counts          hash    created, finished, dead, dropped, duplicates, claimed, leased,
--                           released, reclaimed, stale, starting, waiting, what item pipelines
--                           did (sink_rows, sink_batches, sink_us, sink_retries, sink_refused), and
--                           the last number given to a dead letter (letters) and to a delayed
--                           entry (delays)
--   dead            zset    id of a dead letter -> its number, which is the same
--   letters         hash    id of a dead letter -> 4 bytes length of header, header, entry
--   limits          hash    pattern of slots -> limit, see turns.lua
--   aside           zset    slot that is set aside -> since when (microseconds)
--   paused          zset    slot that a person has paused -> since when (microseconds)
--   ruled           zset    slot that a person has given a limit -> since when (microseconds)
--   slot:SLOT       hash    what is known of a slot, see turns.lua; expires when nothing happens,
--                           unless a person has said something about the slot
--   tokens:WORKER   hash    slot -> downloads that the worker may have at a time
--   robots          hash    host -> "text" .. its robots.txt, compressed, or "by TOKEN" of the
--                           worker that fetches it
--   robots_until    zset    host -> when that expires (microseconds)
--   reaped          string  exists for a second after a reap; beside slot:SLOT, the only key
--                           that expires
--   seen:N...               the dupefilter of generation N
--   trash           list    "BACKEND N" for each dupefilter that waits to be deleted
--
-- finished = done + dead + dropped, and queued + delayed + leased + finished = created, always.

local PREFIX = string.sub(KEYS[1], 1, -5)
local META, COUNTS, READY = KEYS[1], PREFIX .. 'counts', PREFIX .. 'ready'
local DELAYED, BUSY, WORKERS = PREFIX .. 'delayed', PREFIX .. 'busy', PREFIX .. 'workers'
local DEAD, LETTERS = PREFIX .. 'dead', PREFIX .. 'letters'
local REAPED, TRASH = PREFIX .. 'reaped', PREFIX .. 'trash'
local ROBOTS, ROBOTS_UNTIL = PREFIX .. 'robots', PREFIX .. 'robots_until'
local WAKE_CHANNEL = PREFIX .. 'wake'

-- Redis allows about 8,000 values to unpack; a few hundred keep the C stack small.
local CHUNK = 200

local input = cmsgpack.unpack(ARGV[1])

local time = redis.call('TIME')
local NOW = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function integer(number) return string.format('%.0f', number) end

local function leases_of(worker) return PREFIX .. 'leases:' .. worker end
local function worker_key(worker) return PREFIX .. 'worker:' .. worker end
local function levels_of(slot) return PREFIX .. 'levels:' .. slot end
local function queue_of(slot, priority) return PREFIX .. 'queue:' .. slot .. ':' .. priority end
local function seen_base(generation) return PREFIX .. 'seen:' .. generation end

-- Calls f(first, last) for the chunks of 1..n.
local function in_chunks(n, f)
  for first = 1, n, CHUNK do f(first, math.min(first + CHUNK - 1, n)) end
end

-- Changes to `counts` and `busy` gather here and are written once, by flush_counts().
local count_changes, busy_changes = {}, {}
local function count(name, by) count_changes[name] = (count_changes[name] or 0) + by end

-- Leases of a slot begin, or end if n is negative.
local function count_leases(slot, n)
  busy_changes[slot] = (busy_changes[slot] or 0) + n
  count('leased', n)
end

-- -> the counts as they are now {name = number}: created, finished, starting, waiting, dead,
-- leased, and all that have changed
local function flush_counts()
  for _, name in ipairs({'created', 'finished', 'starting', 'waiting', 'dead', 'leased'}) do
    count(name, 0)
  end
  local names, counts, changed = {}, {}, {}
  for name in pairs(count_changes) do names[#names + 1] = name end
  for i, stored in ipairs(redis.call('HMGET', COUNTS, unpack(names))) do
    local name, by = names[i], count_changes[names[i]]
    counts[name] = tonumber(stored or 0) + by
    if by ~= 0 then
      changed[#changed + 1] = name
      changed[#changed + 1] = integer(counts[name])
    end
  end
  if #changed > 0 then redis.call('HSET', COUNTS, unpack(changed)) end
  for slot, by in pairs(busy_changes) do
    -- Slots without leases leave no field behind.
    if by ~= 0 and redis.call('HINCRBY', BUSY, slot, by) <= 0 then
      redis.call('HDEL', BUSY, slot)
    end
  end
  count_changes, busy_changes = {}, {}
  return counts
end

local function all_finished(counts)
  return counts.created == counts.finished and counts.starting == 0
end

local function record_of(slot, priority, entry)
  return priority .. ':' .. #slot .. ':' .. slot .. entry
end

-- -> slot, priority (as text), where the entry begins
local function origin_of(record)
  local _, after, priority, length = string.find(record, '^(%-?%d+):(%d+):')
  local last = after + tonumber(length)
  return string.sub(record, after + 1, last), priority, last + 1
end

-- -> slot, priority (as text), entry
local function parse_record(record)
  local slot, priority, first = origin_of(record)
  return slot, priority, string.sub(record, first)
end

-- A foreign entry may be empty.
local function deliveries_of(entry) return string.byte(entry, 1) or 0 end
local function with_deliveries(entry, n)
  return string.char(math.min(n, 255)) .. string.sub(entry, 2)
end

-- Puts entries into one queue: in the run's order, or at the front, first entry first.
local added = 0
local function put(slot, priority, entries, order, at_front)
  local queue, n = queue_of(slot, priority), #entries
  local left = at_front or order == 'lifo'
  local length
  if at_front then
    local reversed = {}
    for i = 1, n do reversed[i] = entries[n + 1 - i] end
    entries = reversed
  end
  in_chunks(n, function(first, last)
    length = redis.call(left and 'LPUSH' or 'RPUSH', queue, unpack(entries, first, last))
  end)
  if length == n then -- the queue was empty, so its level and perhaps its slot are new
    redis.call('ZADD', levels_of(slot), -tonumber(priority), priority)
    redis.call('ZADD', READY, 'NX', NOW, slot)
  end
  added = added + n
end

-- Puts records back to the front of their queues, keeping their order.
local function put_back(records)
  local groups, order = {}, {}
  for _, record in ipairs(records) do
    local slot, priority, entry = parse_record(record)
    local queue = queue_of(slot, priority)
    if not groups[queue] then
      groups[queue] = {slot = slot, priority = priority, entries = {}}
      order[#order + 1] = queue
    end
    table.insert(groups[queue].entries, entry)
  end
  for _, queue in ipairs(order) do
    local group = groups[queue]
    put(group.slot, group.priority, group.entries, nil, true)
  end
end

-- Keeps a dead letter and drops the oldest past `most`; `letter` has reason, detail, worker, the
-- id of the lease, which ends in when it was handed out, and perhaps error and status.
local function bury(slot, priority, entry, letter, most)
  count('dead', 1)
  local id = integer(redis.call('HINCRBY', COUNTS, 'letters', 1))
  if most == 0 then return end
  local header = cmsgpack.pack({slot = slot, priority = priority, reason = letter.reason,
    detail = letter.detail or '', worker = letter.worker or '', at = integer(NOW),
    error = letter.error or '', status = letter.status or 0,
    claimed = string.match(letter.lease or '', '%.(%d+)$') or '0',
    deliveries = deliveries_of(entry)})
  redis.call('HSET', LETTERS, id, struct.pack('>I4', #header) .. header .. entry)
  redis.call('ZADD', DEAD, id, id)
  if redis.call('ZCARD', DEAD) > most then
    local oldest = redis.call('ZRANGE', DEAD, 0, 0)[1]
    redis.call('ZREM', DEAD, oldest)
    redis.call('HDEL', LETTERS, oldest)
  end
end

-- A worker's flag ('starting': it may still add start requests; 'waiting': it found nothing to
-- claim) is a field of the worker and a sum over the workers in counts.
local function set_flag(worker, name, was, is)
  if was ~= is then
    redis.call('HSET', worker_key(worker), name, is and 1 or 0)
    count(name, is and 1 or -1)
  end
end

local function remove_worker(worker)
  local flags = redis.call('HMGET', worker_key(worker), 'starting', 'waiting')
  if flags[1] == '1' then count('starting', -1) end
  if flags[2] == '1' then count('waiting', -1) end
  redis.call('ZREM', WORKERS, worker)
  redis.call('DEL', worker_key(worker))
end

local function live_workers() return redis.call('ZCOUNT', WORKERS, NOW, '+inf') end

-- Wakes idle workers, if there are any; busy ones ask by themselves. A user without the right to
-- publish gets no error for it: the others find the work by asking.
local function wake(counts)
  if counts.waiting > 0 then redis.pcall('PUBLISH', WAKE_CHANNEL, '') end
end

-- Adds requests: input.queues is {{slot, priority}...}, input.enqueue {{number of the queue,
-- entry, fingerprint or false, delay in ms}...}, input.also fingerprints that are only recorded.
-- -> a string of one character each: '1' it was
-- new, '0' a duplicate.
local function enqueue(seen_add, generation, order)
  local fingerprints = {}
  for _, item in ipairs(input.enqueue) do
    if item[3] then fingerprints[#fingerprints + 1] = item[3] end
  end
  if input.also and #input.also > 0 then
    seen_add(seen_base(generation), input.seen, input.also)
  end
  local new = #fingerprints > 0
    and seen_add(seen_base(generation), input.seen, fingerprints) or {}
  local outcome, entries, next_fingerprint, created = {}, {}, 1, 0
  for i, item in ipairs(input.enqueue) do
    local is_new = true
    if item[3] then
      is_new = new[next_fingerprint] == 1
      next_fingerprint = next_fingerprint + 1
    end
    outcome[i] = is_new and '1' or '0'
    if is_new then
      created = created + 1
      local entry = '\0' .. item[2]
      if item[4] > 0 then
        local queue = input.queues[item[1]]
        local id = integer(redis.call('HINCRBY', COUNTS, 'delays', 1))
        redis.call('ZADD', DELAYED, NOW + item[4] * 1000,
          id .. ':' .. record_of(queue[1], queue[2], entry))
        added = added + 1
      else
        local group = entries[item[1]]
        if not group then
          group = {}
          entries[item[1]] = group
        end
        group[#group + 1] = entry
      end
    end
  end
  for number, queue in ipairs(input.queues) do
    if entries[number] then put(queue[1], queue[2], entries[number], order) end
  end
  count('created', created)
  count('duplicates', #input.enqueue - created)
  return table.concat(outcome)
end

-- The first key of {{slot, priority}...} that a foreign key stands in the place of, else nil.
-- Asked before entries are taken from where they are, because a script that fails half-way is
-- not rolled back.
local function foreign_queue(queues)
  for _, queue in ipairs(queues) do
    local key = queue_of(queue[1], queue[2])
    local length = redis.pcall('LLEN', key)
    if length == 0 then -- then its level will be written, too
      key = levels_of(queue[1])
      length = redis.pcall('ZCARD', key)
    end
    if type(length) == 'table' then return key end -- an error
  end
end

local function foreign_error(key)
  return redis.error_reply('ERR key ' .. key .. ' is not of the type it must be: delete it')
end

-- The queues of a worker's leases; ids that it does not hold have none.
local function queues_of_leases(worker, ids)
  local queues, known = {}, {}
  in_chunks(#ids, function(first, last)
    for _, record in ipairs(redis.call('HMGET', leases_of(worker), unpack(ids, first, last))) do
      if record then
        local slot, priority = parse_record(record)
        local queue = queue_of(slot, priority)
        if not known[queue] then
          known[queue] = true
          queues[#queues + 1] = {slot, priority}
        end
      end
    end
  end)
  return queues
end
