-- One worker's exchange with one shard: everything that happens on the hot path.
--
-- Purpose  heartbeat, enqueue, finish, promote and claim in one step, so that every prefix of
--          the Redis log is a correct frontier: a page's links are in it before or with its end
-- Input    worker, run, acked (number of the last exchange whose reply arrived), ttl (us),
--          queues, enqueue, seen (see common.lua), duplicates (found by the worker itself),
--          done {lease...}, released {lease...}, dead {{lease, reason, detail}...},
--          delayed {{lease, ms}...}, want (entries to claim), slot_limit, room {slot = limit},
--          suspect_from (deliveries from which an entry is a suspect: it may be what its workers
--          died of), suspects (how many of those to claim at most),
--          starting, pages, items, dead_max
-- Reply    {header, lease, record, lease, record...}; header is a msgpack map with `status`:
--            ok       it was applied; `outcome` of each enqueue as '1' new and '0' duplicate
--            replayed it had been applied before; the leases are all that the worker holds
--            gone     the worker was reaped or is unknown: it must join again
--            rewound  the server lost acknowledged exchanges: it must leave and join again
--            lost     the run is gone
--            corrupt  a foreign key (`key`) is in the way; nothing was applied
-- Cost     O(entries moved + slots touched), whatever is queued
-- Retry    safe: exchanges are numbered, an applied one is not applied again
-- Memory   with enqueues the first write adds, so at maxmemory it is refused whole; without,
--          the first write removes, so that finishing and claiming go on

local worker = input.worker

local function reply(header, leases)
  local answer = {cmsgpack.pack(header)}
  for i = 1, leases and #leases or 0 do answer[i + 1] = leases[i] end
  return answer
end

-- 1. guard
local meta = redis.call('HMGET', META, 'run', 'order', 'generation', 'state')
if meta[1] ~= input.run then return reply({status = 'lost', run = meta[1] or ''}) end
local order, generation = meta[2], meta[3]
local state = redis.call('HMGET', worker_key(worker), 'seq', 'starting', 'waiting', 'fenced',
  'duplicates')
if not state[1] or state[4] then return reply({status = 'gone'}) end
local seq = tonumber(state[1])
if seq < input.acked then return reply({status = 'rewound'}) end
local replayed = seq > input.acked
if not replayed then
  local foreign = foreign_queue(input.queues)
    or foreign_queue(queues_of_leases(worker, input.released))
  if foreign then return reply({status = 'corrupt', key = foreign}) end
end

-- 2. heartbeat
if #input.enqueue == 0 or replayed then redis.call('ZREM', WORKERS, worker) end
redis.call('ZADD', WORKERS, NOW + input.ttl, worker)
-- Others may have completed the run while this worker was thought dead.
if meta[4] == 'complete' then redis.call('HSET', META, 'state', 'open') end

local outcome = state[5] or ''
if not replayed then
  -- 4. enqueue
  outcome = ''
  if #input.enqueue > 0 then outcome = enqueue(seen_add, generation, order) end
  count('duplicates', input.duplicates)

  -- 5. finish
  local leases, freed, taken = leases_of(worker), {}, {}
  -- Takes the leases out; calls f(record, item) for each that the worker still held.
  local function take(items, lease_of, f)
    in_chunks(#items, function(first, last)
      local ids = {}
      for i = first, last do ids[#ids + 1] = lease_of(items[i]) end
      local records = redis.call('HMGET', leases, unpack(ids))
      redis.call('HDEL', leases, unpack(ids))
      for i, record in ipairs(records) do
        if record and not taken[ids[i]] then
          taken[ids[i]] = true
          local slot = parse_record(record)
          freed[slot] = (freed[slot] or 0) + 1
          f(record, items[first + i - 1])
        else
          count('stale', 1)
        end
      end
    end)
  end
  local function itself(item) return item end
  local function first_of(item) return item[1] end

  take(input.done, itself, function() count('finished', 1) end)
  take(input.dead, first_of, function(record, item)
    local slot, priority, entry = parse_record(record)
    bury(slot, priority, entry, {reason = item[2], detail = item[3], worker = worker},
      input.dead_max)
    count('finished', 1)
  end)
  local released = {}
  take(input.released, itself, function(record) released[#released + 1] = record end)
  put_back(released)
  count('released', #released)
  take(input.delayed, first_of, function(record, item)
    local id = integer(redis.call('HINCRBY', COUNTS, 'delays', 1))
    redis.call('ZADD', DELAYED, NOW + item[2] * 1000, id .. ':' .. record)
  end)
  for slot, n in pairs(freed) do
    free(slot, n)
    count('leased', -n)
  end
  redis.call('HSET', worker_key(worker), 'seq', input.acked + 1, 'duplicates', outcome,
    'pages', input.pages, 'items', input.items)
end

-- 6. promote
local due = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', NOW, 'LIMIT', 0, 100)
if #due > 0 then
  for _, member in ipairs(due) do
    local slot, priority, entry = parse_record(string.sub(member, string.find(member, ':') + 1))
    redis.call('ZREM', DELAYED, member)
    if foreign_queue({{slot, priority}}) then
      redis.call('ZADD', DELAYED, NOW + 1000000, member)
    else
      put(slot, priority, {entry}, order)
    end
  end
end

-- 7. claim
local claimed, suspects = {}, input.suspects

-- Moves up to `most` entries of a slot to the worker, highest priority first. -> how many
-- A suspect that the worker must not have yet keeps its place, and so does what is behind it.
local function claim_slot(slot, most)
  local n, more, foreign, barred = 0, true, false, false
  while n < most and more and not barred do
    local level = redis.pcall('ZRANGE', levels_of(slot), 0, 0)
    foreign = level.err
    local priority = not foreign and level[1]
    more = priority and true
    local queue = priority and queue_of(slot, priority)
    while more and n < most do
      -- One by one: on lists with list-compress-depth 1 that were pushed to at the front,
      -- LRANGE crashes Redis 6.2, and LPOP with a count is newer than Redis 5.
      local entry = redis.pcall('LPOP', queue)
      if not entry then
        redis.call('ZREM', levels_of(slot), priority)
        break
      elseif type(entry) == 'table' then -- an error: a foreign key stands there
        more, foreign = false, true
      else
        if deliveries_of(entry) >= input.suspect_from then
          if suspects == 0 then
            redis.call('LPUSH', queue, entry)
            barred = true
            break
          end
          suspects = suspects - 1
        end
        n = n + 1
        claimed[#claimed + 1] = record_of(slot, priority, entry)
      end
    end
    if more and n == most and redis.call('EXISTS', queue) == 0 then
      redis.call('ZREM', levels_of(slot), priority)
    end
  end
  more = more and redis.call('EXISTS', levels_of(slot)) == 1
  if foreign then
    redis.call('ZADD', READY, NOW + 1000000, slot) -- the slot is passed over for a second
  elseif more then
    redis.call('ZADD', READY, NOW + #claimed, slot) -- behind the others
  else
    redis.call('ZREM', READY, slot)
  end
  if n > 0 then redis.call('HINCRBY', BUSY, slot, n) end
  return n
end

if input.want > 0 and not replayed then
  local full = 0
  for _ in pairs(input.room) do full = full + 1 end
  local due_slots = redis.call('ZRANGEBYSCORE', READY, '-inf', NOW, 'LIMIT', 0,
    input.want + full)
  local open = {}
  for _, slot in ipairs(due_slots) do
    local room = input.room[slot] or input.slot_limit
    if room > 0 then open[#open + 1] = {slot, room} end
  end
  -- An equal share of each slot first, then what is left of those that have more.
  while #open > 0 and #claimed < input.want do
    local share = math.ceil((input.want - #claimed) / #open)
    local still_open = {}
    for _, item in ipairs(open) do
      local most = math.min(share, item[2], input.want - #claimed)
      if most > 0 and claim_slot(item[1], most) == most and item[2] > most then
        still_open[#still_open + 1] = {item[1], item[2] - most}
      end
    end
    open = still_open
  end
end

local leases = {}
if replayed then
  leases = redis.call('HGETALL', leases_of(worker))
elseif #claimed > 0 then
  local number = redis.call('HINCRBY', COUNTS, 'claimed', #claimed) - #claimed
  -- The time keeps an id from being used again after the counter lost its last values.
  local suffix = '.' .. integer(NOW)
  for i, record in ipairs(claimed) do
    leases[2 * i - 1] = integer(number + i) .. suffix
    leases[2 * i] = record
  end
  in_chunks(#leases, function(first, last)
    redis.call('HSET', leases_of(worker), unpack(leases, first, last))
  end)
  count('leased', #claimed)
end

-- 8. reply
set_flag(worker, 'starting', state[2] == '1', input.starting)
if state[2] == '1' and not input.starting and input.seeded then
  redis.call('HSET', META, 'seeded', 1)
end
if not replayed then
  set_flag(worker, 'waiting', state[3] == '1', input.want > 0 and #claimed == 0)
end
flush_counts()
local counts = redis.call('HMGET', COUNTS, 'created', 'finished', 'starting')
for i = 1, 3 do counts[i] = tonumber(counts[i] or 0) end
local complete = counts[1] == counts[2] and counts[3] == 0
local ended = not replayed and (#input.done > 0 or #input.dead > 0)
if added > 0 or (complete and (ended or state[2] == '1')) then wake() end
local header = {status = replayed and 'replayed' or 'ok', outcome = outcome,
  created = counts[1], finished = counts[2], starting = counts[3], complete = complete,
  overdue = #redis.call('ZRANGEBYSCORE', WORKERS, '-inf', NOW, 'LIMIT', 0, 1)}
if #leases == 0 then -- how many ms until something that waits is due; -1: nothing waits
  local first = redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
  header.next_due = first and math.max(0, math.ceil((tonumber(first) - NOW) / 1000)) or -1
end
return reply(header, leases)
