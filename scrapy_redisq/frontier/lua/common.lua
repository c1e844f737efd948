-- What all scripts share: the keys of a shard, records, and moving entries between places.
--
-- KEYS[1]  the shard's meta key, redisq:{NAME:k}:meta; all other names derive from it, so they
--          share its hash tag and one shard is one Redis Cluster slot
-- KEYS[2]  a key that never exists: see scripts.Call.keys
-- ARGV[1]  one msgpack map, called `input` everywhere
--
-- An ENTRY is one byte, how often a worker died with it, followed by the serialised request,
-- which no script looks into. A RECORD is an entry with where it came from:
-- "PRIORITY:LENGTH-OF-SLOT:SLOT" .. ENTRY
--
--   meta            hash    format, the shared configuration, and the run: its id, name, state
--                           (open, complete or resetting), seeded (some worker has added all its
--                           start requests), began, left (when the last worker went), ended (us),
--                           generation of its dupefilter, inherits, keep_alive, shards (that former
--                           runs had), sealed and visited (see runs.lua), sign and patient (see
--                           ms_until_dead()), behind (us, see NOW), stuck and retry (see
--                           stuck_for() and retry_aside() in turns.lua)
--   ready           zset    slot -> when it may be claimed next (microseconds)
--   levels:SLOT     zset    priorities of the slot that have entries (score = -priority)
--   queue:SLOT:P    list    entries; the next to be claimed is always the leftmost
--   delayed         zset    "ID:" .. record -> when it is due (microseconds)
--   leases:WORKER   hash    lease id -> record
--   workers         zset    worker -> its deadline (microseconds)
--   worker:WORKER   hash    host, pid, spider, since, ttl, seq, duplicates, starting, waiting,
--                           fenced, pages, items
--   busy            hash    slot -> leases out
--   counts          hash    created, requeued, finished, dead, dropped, foreign (dead letters that
--                           nobody enqueued), duplicates, retried, claimed, leased, released,
--                           reclaimed, stale, starting, waiting, what item pipelines
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
--   seen:RUN...             the dupefilter; RUN, its generation, is the run that began it
--   seen:RUN.starts...      identities of the run's start requests, see new_starts()
--   seen:recent:N   set     identities that were asked about lately (N: 0 or 1), see new_recent()
--   kept            hash    what stays in the process of a worker -> who has it, see claim()
--   trash           list    "BACKEND BASE" for each set seen:BASE that waits to be deleted
--   ended           zset    name (REDISQ_RUN) of a run that is complete -> when it was (us)
--
-- finished = done + dead + dropped, and queued + delayed + leased + finished = created, unless
-- somebody else writes to these keys. So nothing that matters rests on counts: what is left is
-- looked at. Whatever else than entries and records is found is a dead letter ("foreign").
--
-- A script that fails half-way is not rolled back. So it looks at the types of the keys that all
-- slots share before it writes (foreign_key()), and what concerns one slot cannot fail: entries that
-- cannot go to their queue wait in `delayed` and are tried again.

local PREFIX = string.sub(KEYS[1], 1, -5)
local META, COUNTS, READY = KEYS[1], PREFIX .. 'counts', PREFIX .. 'ready'
local DELAYED, BUSY, WORKERS = PREFIX .. 'delayed', PREFIX .. 'busy', PREFIX .. 'workers'
local DEAD, LETTERS = PREFIX .. 'dead', PREFIX .. 'letters'
local KEPT = PREFIX .. 'kept'
local REAPED, TRASH = PREFIX .. 'reaped', PREFIX .. 'trash'
local ROBOTS, ROBOTS_UNTIL = PREFIX .. 'robots', PREFIX .. 'robots_until'
local WAKE_CHANNEL = PREFIX .. 'wake'

-- Redis allows about 8,000 values to unpack; a few hundred keep the C stack small.
local CHUNK = 200

local input = cmsgpack.unpack(ARGV[1])

-- Microseconds since 1970, by a clock that never goes back: where the server's does, or another server
-- takes over whose clock is `behind`, it goes on from the last `sign` of life. Else nothing would be
-- due, and nobody dead, before the server's clock is there again.
local time, clock = redis.call('TIME'), redis.pcall('HMGET', META, 'sign', 'behind')
local SERVER_TIME = tonumber(time[1]) * 1000000 + tonumber(time[2])
local BEHIND = tonumber(clock[2] or '') or 0
local NOW = math.max(SERVER_TIME + BEHIND, tonumber(clock[1] or '') or 0)
-- In the year 2112: nothing of ours is due then.
local FAR = 2 ^ 52
if not (NOW >= SERVER_TIME and NOW < FAR) then NOW = SERVER_TIME end -- somebody has bent it

-- A number that is kept as text; 0 if it is not there, or something that nobody here has written.
local function number_of(text)
  local number = tonumber(text or '') or 0
  return math.abs(number) < 2 ^ 53 and number or 0
end

local function integer(number) return string.format('%.0f', number) end

-- Whether a text is UTF-8 (Unicode 15, table 3-7). Names are in replies that cannot be read else.
local function is_text(text)
  if not string.find(text, '[\128-\255]') then return true end
  for _, sequence in ipairs({'[\194-\223]', '\224[\160-\191]', '[\225-\236\238\239][\128-\191]',
      '\237[\128-\159]', '\240[\144-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191]',
      '\244[\128-\143][\128-\191]'}) do
    text = string.gsub(text, sequence .. '[\128-\191]', ' ')
  end
  return not string.find(text, '[\128-\255]')
end

-- The same text, or what it can be shown as.
local function readable(text)
  if is_text(text) then return text end
  return (string.gsub(text, '[\128-\255]', function(c)
    return string.format('\\x%02x', string.byte(c))
  end))
end

local function leases_of(worker) return PREFIX .. 'leases:' .. worker end
local function worker_key(worker) return PREFIX .. 'worker:' .. worker end
local function levels_of(slot) return PREFIX .. 'levels:' .. slot end
local function queue_of(slot, priority) return PREFIX .. 'queue:' .. slot .. ':' .. priority end
local function seen_base(generation) return PREFIX .. 'seen:' .. generation end

-- Calls f(first, last) for the chunks of 1..n.
local function in_chunks(n, f)
  for first = 1, n, CHUNK do f(first, math.min(first + CHUNK - 1, n)) end
end

-- The first of some keys that is of another type than it must be, else nil: {command that tells
-- how long the key is, key...}.
local function foreign_of(keys)
  for i = 1, #keys, 2 do
    if type(redis.pcall(keys[i], keys[i + 1])) == 'table' then return keys[i + 1] end
  end
end

-- The same of the keys that all slots share, and of `more`.
local function foreign_key(more)
  return foreign_of({'HLEN', META, 'HLEN', COUNTS, 'HLEN', BUSY, 'HLEN', LETTERS, 'ZCARD', READY,
    'ZCARD', DELAYED, 'ZCARD', WORKERS, 'ZCARD', DEAD}) or (more and foreign_of(more))
end

local function foreign_error(key)
  return redis.error_reply('ERR key ' .. key .. ' is not of the type it must be: delete it')
end

-- What was met in the place of the queue or the levels of a slot, for who asks to be told.
local key_in_the_way

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
    counts[name] = number_of(stored) + by
    if by ~= 0 then
      changed[#changed + 1] = name
      changed[#changed + 1] = integer(counts[name])
    end
  end
  if #changed > 0 then redis.call('HSET', COUNTS, unpack(changed)) end
  for slot, by in pairs(busy_changes) do
    -- Slots without leases leave no field behind.
    local busy = by == 0 or redis.pcall('HINCRBY', BUSY, slot, by)
    if type(busy) == 'table' or (by ~= 0 and busy <= 0) then redis.call('HDEL', BUSY, slot) end
  end
  count_changes, busy_changes = {}, {}
  return counts
end

-- The next number of those that `name` counts. One that is none, or too large for Lua to tell from
-- the next, is replaced by the time.
local function next_number(name)
  local number = redis.pcall('HINCRBY', COUNTS, name, 1)
  if type(number) == 'table' or number >= 2 ^ 53 then
    number = NOW
    redis.call('HSET', COUNTS, name, integer(number))
  end
  return integer(number)
end

local function record_of(slot, priority, entry)
  return priority .. ':' .. #slot .. ':' .. slot .. entry
end

-- As long as they may be: priorities have up to 2^53.
local function is_priority(text) return #text <= 17 and string.find(text, '^%-?%d+$') ~= nil end

-- -> slot, priority (as text), where the entry begins; nil if it is no record
local function origin_of(record)
  local _, after, priority, length = string.find(record, '^(%-?%d+):(%d+):')
  local last = after and after + tonumber(length)
  if not last or last > #record or not is_priority(priority) then return end
  local slot = string.sub(record, after + 1, last)
  if is_text(slot) then return slot, priority, last + 1 end
end

-- -> slot, priority (as text), entry; nil if it is no record
local function parse_record(record)
  local slot, priority, first = origin_of(record)
  if slot then return slot, priority, string.sub(record, first) end
end

-- The record of a member of `delayed`; '' if it has none.
local function delayed_record(member)
  return string.sub(member, (string.find(member, ':', 1, true) or #member) + 1)
end

-- Keeps a record back for some time (ms).
local function delay(record, ms)
  redis.call('ZADD', DELAYED, NOW + ms * 1000, next_number('delays') .. ':' .. record)
end

-- A foreign entry may be empty.
local function deliveries_of(entry) return string.byte(entry, 1) or 0 end
local function with_deliveries(entry, n)
  return string.char(math.min(n, 255)) .. string.sub(entry, 2)
end

-- Milliseconds after which it is tried again to put entries where another key is in the way.
local AGAIN = 1000

-- Puts entries into one queue: in the run's order, or at the front, first entry first.
local added = 0
local function put(slot, priority, entries, order, at_front)
  local queue, n = queue_of(slot, priority), #entries
  local left = at_front or order == 'lifo'
  local length, pushed = nil, entries
  if at_front then
    pushed = {}
    for i = 1, n do pushed[i] = entries[n + 1 - i] end
  end
  in_chunks(n, function(first, last)
    length = redis.pcall(left and 'LPUSH' or 'RPUSH', queue, unpack(pushed, first, last))
  end)
  local in_the_way = type(length) == 'table' and queue
  if length == n then -- the queue was empty, so its level and perhaps its slot are new
    local level = redis.pcall('ZADD', levels_of(slot), -tonumber(priority), priority)
    if type(level) == 'table' then
      in_the_way = levels_of(slot)
      redis.call('UNLINK', queue)
    else
      redis.call('ZADD', READY, 'NX', NOW, slot)
    end
  end
  if in_the_way then
    key_in_the_way = in_the_way
    for i = 1, n do delay(record_of(slot, priority, entries[i]), AGAIN) end
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

-- Bytes of what is foreign that are kept.
local MOST_FOREIGN = 65536

-- Keeps a dead letter and drops the oldest past `most`; `letter` has reason, detail, worker, the
-- id of the lease, which ends in when it was handed out, and perhaps error and status.
local function bury(slot, priority, entry, letter, most)
  count('dead', 1)
  local id = next_number('letters')
  if most == 0 then return end
  local foreign = foreign_of({'HLEN', LETTERS, 'ZCARD', DEAD})
  if foreign then -- counted, not kept: nothing may fail in the midst of a claim
    key_in_the_way = foreign
    return
  end
  local header = cmsgpack.pack({slot = readable(slot), priority = priority, reason = letter.reason,
    detail = letter.detail or '', worker = readable(letter.worker or ''), at = integer(NOW),
    error = letter.error or '', status = letter.status or 0,
    claimed = string.match(letter.lease or '', '%.(%d+)$') or '0',
    deliveries = deliveries_of(entry), foreign = letter.foreign or false})
  local value = struct.pack('>I4', #header) .. header .. entry
  if redis.call('HSETNX', LETTERS, id, value) == 0 then -- the counter was set back
    id = integer(tonumber(redis.call('ZRANGE', DEAD, -1, -1, 'WITHSCORES')[2] or 0) + 1)
    redis.call('HSET', LETTERS, id, value)
    redis.call('HSET', COUNTS, 'letters', id)
  end
  redis.call('ZADD', DEAD, id, id)
  -- Some more each time where `most` was lowered.
  local excess = math.min(redis.call('ZCARD', DEAD) - most, 10)
  if excess > 0 then
    local oldest = redis.call('ZRANGE', DEAD, 0, excess - 1)
    redis.call('ZREM', DEAD, unpack(oldest))
    redis.call('HDEL', LETTERS, unpack(oldest))
  end
end

-- -> slot, priority (as text), entry, header of a dead letter; nil if it is none
local function parse_letter(letter)
  if #letter < 4 then return end
  local length = struct.unpack('>I4', letter)
  local known, header = pcall(cmsgpack.unpack, string.sub(letter, 5, 4 + length))
  if not known or type(header) ~= 'table' then return end
  local slot, priority = header.slot, tostring(header.priority)
  if type(slot) == 'string' and is_text(slot) and is_priority(priority) then
    return slot, priority, string.sub(letter, 5 + length), header
  end
end

-- Dead letters of what nobody has enqueued, so that it was never counted as created.
local function count_foreign(n)
  count('created', n)
  count('foreign', n)
end

-- Makes a dead letter of something that is no entry, or no record; `where` it was found.
local function condemn(slot, data, where, most, worker)
  local size = #data > MOST_FOREIGN and ', ' .. #data .. ' bytes' or ''
  bury(slot, '0', string.sub(data, 1, MOST_FOREIGN), {reason = 'foreign', worker = worker, foreign = true,
    detail = 'not written by scrapy-redisq, found in ' .. readable(where) .. size}, most)
  count_foreign(1)
  count('finished', 1)
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
  local flags = redis.pcall('HMGET', worker_key(worker), 'starting', 'waiting')
  if flags[1] == '1' then count('starting', -1) end
  if flags[2] == '1' then count('waiting', -1) end
  redis.call('ZREM', WORKERS, worker)
  redis.call('DEL', worker_key(worker))
end

local function live_workers() return redis.call('ZCOUNT', WORKERS, NOW, '+inf') end

-- -> ms until a worker that gives no sign of life is dead; 0: one is, or there is none. To be called
-- whenever a worker gives one.
-- While Redis is away or stopped nobody can give one, and somebody is the first to come back: after
-- half a TTL without any no worker is dead before `patient`. A shorter gap leaves each a quarter of
-- its TTL to come back. `sign`: when the last one was, more or less.
local function ms_until_dead(sign, patient)
  sign, patient = tonumber(sign or ''), tonumber(patient or '')
  if NOW - (sign or NOW) > input.ttl / 2 then
    patient = NOW + math.max(input.ttl / 4, math.min(1000000, input.ttl / 2))
    redis.call('HSET', META, 'patient', integer(patient))
  end
  if not (math.abs(NOW - (sign or 0)) <= input.ttl / 16) then -- or no number at all
    redis.call('HSET', META, 'sign', integer(NOW))
  end
  if NOW - SERVER_TIME ~= BEHIND then redis.call('HSET', META, 'behind', integer(NOW - SERVER_TIME)) end
  local deadline = tonumber(redis.call('ZRANGE', WORKERS, 0, 0, 'WITHSCORES')[2] or NOW)
  if patient and patient - NOW <= input.ttl then deadline = math.max(deadline, patient) end
  return math.max(0, math.ceil((deadline - NOW) / 1000))
end

-- How many leases a worker holds; none if another key is in their place.
local function leases_held(worker) return tonumber(redis.pcall('HLEN', leases_of(worker))) or 0 end

-- Ids of the leases that a worker holds, in the order of their claims; nil if another key is in
-- their place.
local function lease_ids(worker)
  local ids = redis.pcall('HKEYS', leases_of(worker))
  if ids.err then return end
  local function number(id) return tonumber(string.match(id, '^%d+')) or 0 end
  table.sort(ids, function(a, b) return number(a) < number(b) end)
  return ids
end

-- Bytes of entries that one call moves, before others have their turn.
local MOST_BYTES = 4000000

-- Gives back, to the front, about 100 of the leases that a worker holds, or about 4 MB of them.
local function give_back_leases(worker, dead_max)
  local key, back, bytes = leases_of(worker), {}, 0
  for _, id in ipairs(lease_ids(worker) or {}) do
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

-- Whether no worker holds anything or may still add start requests.
local function all_idle()
  for _, worker in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do
    local known = redis.pcall('HMGET', worker_key(worker), 'seq', 'starting')
    if known[2] == '1' or leases_held(worker) > 0 then return false end
    if not known[1] then redis.call('ZREM', WORKERS, worker) end -- it never joined
  end
  return true
end

-- Whether nothing is left to do. Looked at, not counted: entries that others put here, or keys that
-- they delete, bend the counts. To be asked when everything else has been written.
local function all_finished()
  if redis.call('EXISTS', READY, DELAYED) > 0 or not all_idle() then return false end
  redis.call('DEL', BUSY)
  redis.call('HDEL', COUNTS, 'leased')
  return true
end

-- Wakes idle workers, if there are any; busy ones ask by themselves. A user without the right to
-- publish gets no error for it: the others find the work by asking.
local function wake(counts)
  if counts.waiting > 0 then redis.pcall('PUBLISH', WAKE_CHANNEL, '') end
end

-- Functions that take back what has been recorded in exact sets, and name the key that was asked.
local undo_exact = {}

-- After an error, when nothing but the sets of what is seen has been written to: names the key in
-- the way, if that was it, so that the same can be tried again when it is deleted.
local function key_at_fault(seen_undo, problem)
  local key, text = seen_undo(), type(problem) == 'table' and problem.err or tostring(problem)
  for i = #undo_exact, 1, -1 do
    local asked = undo_exact[i]()
    key = key or asked -- sets are asked before the dupefilter
  end
  if string.find(text, 'WRONGTYPE', 1, true) or string.find(text, 'item exists', 1, true) then
    return key
  end
  error(problem, 0)
end

-- Whether the identities of start requests are new to the run: an array of 1 or 0.
local function new_starts(run, members)
  local add, undo = exact_set()
  undo_exact[#undo_exact + 1] = undo
  return add(seen_base(run .. '.starts'), {'0'}, members)
end

-- The same for other requests that the dupefilter is not asked about. What is sent again is sent
-- soon, so only the last ones are kept: between one and two times RECENT. With `look` nothing is
-- recorded.
local RECENT = 500000
local function new_recent(members, look)
  local newer = redis.call('HGET', META, 'recent') == '1' and 1 or 0
  local key, older, answers = seen_base('recent:' .. newer), seen_base('recent:' .. 1 - newer), {}
  local touched, recorded = key, {}
  undo_exact[#undo_exact + 1] = function()
    for _, member in ipairs(recorded) do redis.call('SREM', key, member) end
    return touched
  end
  local none = look and redis.call('EXISTS', key, older) == 0
  local function has(set, member)
    touched = set
    return redis.call('SISMEMBER', set, member) == 1
  end
  for i, member in ipairs(members) do
    local known = not none and (has(key, member) or has(older, member))
    if not known and not look then
      redis.call('SADD', key, member)
      recorded[#recorded + 1] = member
    end
    answers[i] = known and 0 or 1
  end
  if not look and redis.call('SCARD', key) >= RECENT then
    redis.call('UNLINK', older)
    redis.call('HSET', META, 'recent', 1 - newer)
  end
  return answers
end

-- Whether a worker is in the run, and has not been taken for dead.
local function is_member(worker)
  local known = redis.pcall('HMGET', worker_key(worker), 'seq', 'fenced')
  return known[1] and not known[2]
end

-- Who has what stays in a process, by its field in `kept`: "WORKER LEASE PAGE", the lease that it was
-- claimed for ('' if no page stands for it), and what is known of the page that it goes back to: its
-- identity, or '' where that is the request itself. Nothing after the worker gave it up.
-- -> worker, lease, page (nil if nobody has it), whether the field is there
local function claimant(field)
  local kept = redis.call('HGET', KEPT, field)
  local worker, lease, page = string.match(kept or '', '^(%S+) (%S*) (.*)$')
  return worker, lease, page, kept
end

-- Claims a request that cannot be stored for the worker, in whose process it stays; `is_new`: its
-- fingerprint or identity was. A claim ends with its worker, or when its page has gone on to somebody
-- else, who asks for all of it again; else it is there until it is settled.
-- -> '1' it is the worker's, '0' a duplicate, '3' another worker has it, and no page stands for it
-- there or here: ask again. What a page stands for never waits: two such might wait for each other.
local function claim(is_new, field, lease, page)
  local owner, its_lease, its_page, kept = claimant(field)
  local is_mine = owner == input.worker and its_lease == lease
  local has_moved = owner and page ~= '' and its_page == page and not is_mine
  if is_new or has_moved or (kept and not (owner and is_member(owner))) then
    redis.call('HSET', KEPT, field, input.worker .. ' ' .. lease .. ' ' .. page)
    return '1'
  end
  return owner and owner ~= input.worker and page == '' and its_page == '' and '3' or '0'
end

-- Ends claims: input.settled is {{field in `kept`, lease, whether it was dealt with}...}. What was not
-- may be claimed by others. What another living worker has is its own.
local function settle()
  for _, item in ipairs(input.settled) do
    local owner, lease, _, kept = claimant(item[1])
    local is_mine = owner == input.worker and lease == item[2]
    if kept and (is_mine or not (owner and is_member(owner))) then
      if item[3] then redis.call('HDEL', KEPT, item[1])
      else redis.call('HSET', KEPT, item[1], '') end
    end
  end
end

-- Adds requests: input.queues is {{slot, priority}...}, input.enqueue {{number of the queue,
-- entry, fingerprint or false, delay in ms, and where it is known by something else than its
-- fingerprint: 1 to ask new_starts() about its identity, 2 new_recent(), 3 the same without
-- recording it, 0 nobody; its identity; lease that the worker must hold or ''; and for one that cannot
-- be stored, whose queue is 0, its number in input.claims}...}, which is {{field, lease and page for
-- claim()}...}, input.also fingerprints that are only recorded.
-- `void` are leases {lease = true} that the worker does not hold.
-- -> a string of one character each: '1' it was new, '0' a duplicate, '2' its lease is void, '3' see
-- claim()
local function enqueue(seen_add, run, generation, order, void)
  local queues = input.queues or {}
  for _, queue in ipairs(queues) do
    if not is_priority(queue[2]) then error('no priority: ' .. queue[2], 0) end
  end
  local fingerprints, starts, recent, looked_at = {}, {}, {}, {}
  for _, item in ipairs(input.enqueue) do
    if item[3] then fingerprints[#fingerprints + 1] = item[3]
    elseif item[5] == 1 then starts[#starts + 1] = item[6]
    elseif item[5] == 2 then recent[#recent + 1] = item[6]
    elseif item[5] == 3 then looked_at[#looked_at + 1] = item[6] end
  end
  -- Sets first: what they record can be taken back, RedisBloom's cannot.
  local new_start = #starts > 0 and new_starts(run, starts) or {}
  local newly = #recent > 0 and new_recent(recent) or {}
  local looked = #looked_at > 0 and new_recent(looked_at, true) or {}
  if input.also and #input.also > 0 then
    seen_add(seen_base(generation), input.seen, input.also)
  end
  local new = #fingerprints > 0
    and seen_add(seen_base(generation), input.seen, fingerprints) or {}
  local outcome, entries, created, duplicates = {}, {}, 0, 0
  local next_fingerprint, next_start, next_recent, next_looked = 1, 1, 1, 1
  for i, item in ipairs(input.enqueue) do
    local is_new = true
    if item[3] then
      is_new = new[next_fingerprint] == 1
      next_fingerprint = next_fingerprint + 1
    elseif item[5] == 1 then
      is_new = new_start[next_start] == 1
      next_start = next_start + 1
    elseif item[5] == 2 then
      is_new = newly[next_recent] == 1
      next_recent = next_recent + 1
    elseif item[5] == 3 then
      is_new = looked[next_looked] == 1
      next_looked = next_looked + 1
    end
    if item[7] and void[item[7]] then
      outcome[i] = '2'
    elseif item[8] then
      outcome[i] = claim(is_new, unpack(input.claims[item[8]]))
      if outcome[i] == '0' then duplicates = duplicates + 1 end
    elseif not is_new then
      outcome[i] = '0'
      duplicates = duplicates + 1
    else
      outcome[i] = '1'
      created = created + 1
      local queue, entry = queues[item[1]], '\0' .. item[2]
      if item[4] > 0 then
        delay(record_of(queue[1], queue[2], entry), item[4])
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
  for number, queue in ipairs(queues) do
    if entries[number] then put(queue[1], queue[2], entries[number], order) end
  end
  count('created', created)
  count('duplicates', duplicates)
  return table.concat(outcome)
end
