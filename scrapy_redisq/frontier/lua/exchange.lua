-- One worker's exchange with one shard: everything that happens on the hot path.
--
-- Purpose  heartbeat, enqueue, finish, promote and claim in one step, so that every prefix of
--          the Redis log is a correct frontier: a page's links are in it before or with its end
-- Input    worker, run, acked (number of the last exchange whose reply arrived), ttl (us), seen
--          (parameters of the dupefilter, see shared/seen/), duplicates (found by the worker
--          itself), held (leases that the worker knows of), want (entries to claim), slot_limit,
--          suspect_from (deliveries from which an entry is a suspect: it may be what its workers
--          died of), suspects (how many of those to claim at most), max_deliveries, most_bytes (of
--          an entry), starting, seeded, pages, items, dead_max; (the rest only if there is some)
--          queues, enqueue, also (see shared/enqueue.lua),
--          letters {{identity, slot, priority, entry or '', reason, detail,
--          error, status}...} (of what could not be enqueued), done {{slot, {lease...}}...},
--          retried {{lease, priority, serialised request, ms}...}, released
--          {lease...}, dead {{lease, reason, detail, error, status, whether nobody has enqueued
--          it}...}, backed_off {{lease, serialised request}...}, posts
--          {{id, links to other shards}...}, hold (us, for these; with shards on several servers
--          only), delivered {id...} (posts that are no longer needed), begun
--          {shard...} (that have begun the run for good), room {slot = limit}, tally {count = what
--          is added to it}, turns {{slot, ... (see report_turn() in shared/slots/turns.lua),
--          entries to claim of it}...},
--          results {{slot, ... (see report_download() in shared/slots/backoff.lua)}...}, back_off
--          (terms for these), statuses {slot = HTTP status of its last answer}, report (JSON, of
--          the worker, for people), history {{id, record}...} (of what it finishes), history_max
--          (records that are kept)
-- Reply    {status} or {status, msgpack map, key that is in the way of some requests, which wait
--          until it is deleted, or '', lease, record, lease, record...}. The map has outcome (of
--          each enqueue, see shared/enqueue.lua), created, finished, complete (nothing is left to
--          do on this shard, and nobody may add to it), waiting, dead, full (Redis is at its
--          maxmemory), overdue_in (ms until a worker may be dead; 0: one is), next_due (ms until
--          it is worth asking again; -1: nothing waits), turns {turn...} (see give_turn() in
--          shared/slots/turns.lua), stuck (seconds for which all that is left has been in slots
--          that are set aside; -1: it is not), post_due (ms until somebody should take the oldest
--          post; -1: there is none), told (by people, see workers/tell.lua; 'paused', see
--          run/pause.lua; or ''). The status is
--            ok       it was applied
--            replayed it had been applied before; the leases are those that it brought then
--            gone     the worker was reaped or is unknown: it must join again
--            rewound  the server lost acknowledged exchanges: it must leave and join again
--            lost     the run is gone
--            sealed   the shard must be opened before something is enqueued, see run/open.lua;
--                     nothing was applied
--            corrupt  a foreign key is in the way, which stands behind; nothing was applied
-- Cost     O(entries moved + slots touched), whatever is queued
-- Retry    safe: exchanges are numbered, an applied one is not applied again
-- Memory   nothing is refused at maxmemory: see sign_of_life() in shared/workers.lua
-- Include  shared/keys shared/bounds shared/texts shared/clock shared/foreign shared/counts
--          shared/records shared/queues shared/dead shared/workers shared/leases shared/finished
--          shared/identities shared/enqueue shared/slots/state shared/slots/backoff
--          shared/slots/turns shared/slots/aside shared/post dupefilter=shared/seen/BACKEND
--          sampler=shared/sample
--          history_keeper=shared/history

local worker, NONE = input.worker, {}
local done, released = input.done or NONE, input.released or NONE
local dead = input.dead or NONE
local backed_off, retried = input.backed_off or NONE, input.retried or NONE

-- 1. guard
local meta = redis.pcall('HMGET', META, 'run', 'order', 'generation', 'state',
  'limited', 'throttle', 'stuck', 'sign', 'patient', 'retry', 'sealed', 'sampled', 'paused')
if meta.err then return {'corrupt', META} end
-- Not foreign_key(): each question costs as much as a request that is moved.
local foreign = foreign_of({'HLEN', COUNTS, 'ZCARD', READY, 'ZCARD', DELAYED, 'ZCARD', WORKERS,
  'HLEN', leases_of(worker)})
if not foreign and (input.want > 0 or input.done or input.released or input.dead
    or input.backed_off or input.retried) then
  foreign = foreign_of({'HLEN', BUSY})
end
if not foreign and (input.dead or input.letters) then
  foreign = foreign_of({'HLEN', LETTERS, 'ZCARD', DEAD})
end
if not foreign and (meta[5] or input.turns or input.results) then
  foreign = foreign_of({'HLEN', tokens_key(worker), 'HLEN', LIMITS, 'ZCARD', ASIDE})
end
if not foreign and (input.posts or input.delivered) then
  foreign = foreign_of({'ZCARD', POST, 'HLEN', POSTED})
end
if foreign then return {'corrupt', foreign} end
if meta[1] ~= input.run then return {'lost'} end
local order, generation = meta[2], meta[3]
local state = redis.pcall('HMGET', worker_key(worker), 'seq', 'starting', 'waiting',
  'duplicates', 'claims', 'told')
if state.err then return {'corrupt', worker_key(worker)} end

-- 2. replay check
local seq = tonumber(state[1] or '')
-- A number that is none, or that this worker cannot have come to, is of another hand.
if not seq or not is_member(worker) or not (seq <= input.acked + 1) then return {'gone'} end
if seq < input.acked then return {'rewound'} end
local replayed = seq > input.acked
if not generation then return {'corrupt', META} end
if meta[11] and input.enqueue and not replayed then return {'sealed'} end
local paused = meta[13]
if paused then input.want = 0 end

-- 3. heartbeat
local full = sign_of_life(worker)

local outcome, limited = state[4] or '', meta[5]
read_throttle(meta[6])
if number_of(meta[10]) > 0 then retry_aside(integer(number_of(meta[10]))) end
if not replayed then
  -- 4. enqueue
  local seen
  local function take_in()
    local letters, ids = input.letters or NONE, {}
    for i, item in ipairs(letters) do ids[i] = item[1] end
    -- One, not one for each worker and each time that it begins.
    local new = #ids > 0 and new_starts(meta[1], ids) or NONE
    local became = input.enqueue and enqueue(seen.add, meta[1], generation, order) or ''
    for i, item in ipairs(letters) do
      if new[i] == 1 then
        bury(item[2], item[3], '\0' .. item[4], {reason = item[5], detail = item[6],
          error = item[7], status = item[8], worker = worker}, input.dead_max)
        count('created', 1)
        count('finished', 1)
      end
    end
    return became
  end
  outcome = ''
  if input.enqueue or input.letters then
    seen = dupefilter()
    local added_all
    added_all, outcome = pcall(take_in)
    if not added_all then return {'corrupt', key_at_fault(seen.undo, outcome)} end
  end
  -- Other workers may have completed the run while this one was thought dead.
  if meta[4] == 'complete' and (count_changes.created or 0) > (count_changes.finished or 0)
      then
    redis.call('HSET', META, 'state', 'open')
  end
  count('duplicates', input.duplicates)
  for name, by in pairs(input.tally or NONE) do count(name, by) end

  -- 5. finish
  local leases, taken = leases_of(worker), {}
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
          local slot = origin_of(record)
          if slot then
            count_leases(slot, -1)
            f(record, items[first + i - 1])
          else -- somebody has written over it
            count('leased', -1)
            condemn('', record, leases, input.dead_max, worker)
          end
        else
          count('stale', 1)
        end
      end
    end)
  end
  local function itself(item) return item end
  local function first_of(item) return item[1] end

  for _, group in ipairs(done) do
    local slot, ids, finished = group[1], group[2], 0
    in_chunks(#ids, function(first, last)
      finished = finished + redis.call('HDEL', leases, unpack(ids, first, last))
    end)
    count_leases(slot, -finished)
    count('finished', finished)
    count('stale', #ids - finished)
  end
  take(dead, first_of, function(record, item)
    local slot, priority, entry = parse_record(record)
    bury(slot, priority, entry, {reason = item[2], detail = item[3], error = item[4],
      status = item[5], foreign = item[6], worker = worker, lease = item[1]}, input.dead_max)
    if item[6] then count_foreign(1) end
    count('finished', 1)
  end)
  for slot, status in pairs(input.statuses or NONE) do note_status(slot, status) end
  for _, item in ipairs(input.results or NONE) do
    report_download(item, input.back_off)
    limited = true
  end
  local given_back = {}
  take(released, itself, function(record) given_back[#given_back + 1] = record end)
  take(backed_off, first_of, function(record, item)
    local slot, priority, entry = parse_record(record)
    entry = string.sub(entry, 1, 1) .. item[2]
    -- To the front; but a second failure may be the request's own, so other requests are tried
    -- first.
    if slot_of(slot).fails < 2 then
      given_back[#given_back + 1] = record_of(slot, priority, entry)
    else
      put(slot, priority, {entry}, 'fifo')
      count('released', 1)
    end
  end)
  put_back(given_back)
  count('released', #given_back)
  -- A retry takes the place of what it is a retry of.
  take(retried, first_of, function(record, item)
    local slot = origin_of(record)
    local entry = '\0' .. item[3]
    if item[4] > 0 then delay(record_of(slot, item[2], entry), item[4])
    else put(slot, item[2], {entry}, order) end
    count('retried', 1)
    count('created', 1)
    count('finished', 1)
  end)
  if input.posts then keep_posts(input.posts, input.hold) end
  if input.delivered then remove_posts(input.delivered) end
  for _, shard in ipairs(input.begun or NONE) do redis.call('HSET', META, 'begun:' .. shard, 1) end
  redis.call('HSET', worker_key(worker), 'seq', input.acked + 1, 'duplicates', outcome,
    'pages', input.pages, 'items', input.items)
  if input.history then history_keeper()(full and NONE or input.history, input.history_max) end
  if input.report then redis.call('HSET', worker_key(worker), 'report', input.report) end
end

local turns, told, has_turn = input.turns or NONE, {}, {}
limited = limited or #turns > 0
if limited then
  for _, item in ipairs(turns) do report_turn(worker, item) end
end

-- 6. promote
local PORTION = 25 -- entries that are taken at once, whatever their size
local function first_due() return tonumber(redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]) end
local due = first_due()
if due and due <= NOW then
  local promoted, moved = 0, 0
  repeat
    local members = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', NOW, 'LIMIT', 0, PORTION)
    for _, member in ipairs(members) do
      local slot, priority, entry = parse_record(delayed_record(member))
      redis.call('ZREM', DELAYED, member)
      if slot then put(slot, priority, {entry}, order)
      else condemn('', member, DELAYED, input.dead_max, worker) end
      promoted, moved = promoted + 1, moved + #member
    end
  until #members < PORTION or promoted >= 100 or moved >= MOST_BYTES
  due = first_due()
end

-- 7. claim
local claimed, suspects, bytes = {}, input.suspects, 0

-- Takes up to `most` entries from a queue; an error stands for a foreign key. Before Redis 7.0 one
-- by one: LPOP with a count is newer than Redis 5, and with list-compress-depth 1 LRANGE crashes
-- Redis 6.2 on lists that were pushed to at the front.
local function pop(queue, most)
  if redis.REDIS_VERSION_NUM then return redis.pcall('LPOP', queue, most) or {} end
  local entries = {}
  for i = 1, most do
    local entry = redis.pcall('LPOP', queue)
    if type(entry) == 'table' then return entry end
    if not entry then break end
    entries[i] = entry
  end
  return entries
end

-- Moves up to `most` entries of a slot to the worker, highest priority first. -> how many
-- A suspect that the worker must not have yet keeps its place, and so does what is behind it.
local function claim_slot(slot, most)
  local levels, n, more, foreign, barred = levels_of(slot), 0, true, false, false
  while n < most and more and not barred and bytes < MOST_BYTES do
    local two_levels = redis.pcall('ZRANGE', levels, 0, 1)
    local priority = two_levels[1]
    local queue = priority and queue_of(slot, priority)
    local kept = priority and is_priority(priority) and priority or '0'
    local wanted = math.min(most - n, PORTION)
    local entries = queue and pop(queue, wanted) or {}
    foreign = two_levels.err and levels or entries.err and queue
    for i, entry in ipairs(entries) do
      -- What has more deliveries than there can be was not written here.
      local deliveries = deliveries_of(entry)
      if deliveries >= input.suspect_from and deliveries < input.max_deliveries then
        if suspects == 0 then
          for j = #entries, i, -1 do redis.call('LPUSH', queue, entries[j]) end
          barred = true
          break
        end
        suspects = suspects - 1
      end
      bytes = bytes + #entry
      if #entry > input.most_bytes then
        condemn(slot, entry, queue, input.dead_max, worker)
      else
        n = n + 1
        claimed[#claimed + 1] = record_of(slot, kept, entry)
      end
    end
    if foreign then
      more = false
    elseif not barred and queue
        and (#entries < wanted or redis.call('EXISTS', queue) == 0) then
      redis.call('ZREM', levels, priority)
      more = two_levels[2]
    else
      more = priority
    end
  end
  if foreign then
    key_in_the_way = foreign
    redis.call('ZADD', READY, NOW + AGAIN * 1000, slot) -- the slot is passed over
  elseif more then
    redis.call('ZADD', READY, NOW + #claimed, slot) -- behind the others
  else
    redis.call('ZREM', READY, slot)
  end
  count_leases(slot, n)
  return n
end

-- A slot whose name is no text was not written here, and neither were about 100 of its entries,
-- which become dead letters.
local function condemn_slot(slot)
  local levels, n = levels_of(slot), 0
  for _, priority in ipairs(redis.pcall('ZRANGE', levels, 0, 99)) do
    local queue, entries = queue_of(slot, priority), {}
    repeat
      entries = pop(queue, PORTION)
      for _, entry in ipairs(entries) do
        condemn(slot, entry, queue, input.dead_max, worker)
        n, bytes = n + 1, bytes + #entry
      end
    until #entries < PORTION or n >= 100 or bytes >= MOST_BYTES
    if #entries == PORTION then return end
    redis.call('ZREM', levels, priority)
  end
  if redis.pcall('ZCARD', levels) ~= 0 and n > 0 then return end
  redis.call('ZREM', READY, slot)
end

-- -> how many of `most` entries the worker may claim of a slot
local function admit(slot, most)
  if not limited then return most end
  local n, turn = give_turn(worker, slot, most)
  if turn then
    told[#told + 1] = turn
    has_turn[slot] = true
  end
  return n
end

local rooms, known_rooms = input.room or NONE, 0
for _ in pairs(rooms) do known_rooms = known_rooms + 1 end
local function room_of(slot) return rooms[slot] or input.slot_limit end

-- The slots that the worker has turns of must not take all: up to half is for other slots that are
-- due. Of a worker that wants one at a time, now these get it, now those.
local reserve = 0
if limited and not replayed and #turns > 0 and input.want > 0 then
  local mine = {}
  for _, item in ipairs(turns) do mine[item[1]] = true end
  for _, slot in ipairs(redis.call('ZRANGEBYSCORE', READY, '-inf', NOW, 'LIMIT', 0,
      #turns + input.want + known_rooms)) do
    if not mine[slot] and room_of(slot) > 0 then reserve = reserve + 1 end
  end
  reserve = math.min(reserve, math.floor((input.want + NOW % 2) / 2))
end

local asked_for = {}
if limited and not replayed then
  for _, item in ipairs(turns) do
    local slot = item[1]
    if item[5] == 0 then
      asked_for[slot] = true
      local n = admit(slot, math.min(item[6], math.max(0, input.want - reserve - #claimed)))
      if n > 0 then claim_slot(slot, n) end
      if not has_turn[slot] then
        local turn = turn_of(worker, slot)
        if n == 0 and turn[2] ~= FREE then turn[3] = -1 end -- refused
        told[#told + 1] = turn
      end
    else
      -- It may believe that the slot is parked, which it no longer is.
      local turn = turn_of(worker, slot)
      if turn[2] == FREE then told[#told + 1] = turn end
    end
  end
end

local more_are_due = false
if input.want > 0 and not replayed then
  local look_at = input.want + known_rooms + #turns
  local due_slots = redis.call('ZRANGEBYSCORE', READY, '-inf', NOW, 'LIMIT', 0, look_at)
  local open = {}
  more_are_due = #due_slots == look_at
  for _, slot in ipairs(due_slots) do
    -- Each of them is to get an entry: a turn without one would keep the slot from other workers.
    if #claimed + #open >= input.want then break end
    local room = room_of(slot)
    if not is_text(slot) then
      condemn_slot(slot)
      room = 0
    end
    -- Of those that it told of it has got what it asked for; to be asked twice would end a turn
    -- of which it has not heard that it ends.
    if room > 0 then room = asked_for[slot] and 0 or admit(slot, math.min(room, input.want)) end
    if room > 0 then open[#open + 1] = {slot, room} end
  end
  -- An equal share of each slot first, then what is left of those that have more.
  while #open > 0 and #claimed < input.want do
    local share = math.max(1, math.floor((input.want - #claimed) / #open))
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

for slot in pairs(has_turn) do after_turn(slot) end

-- What other programs have written would keep the crawl from ending: times that never come, workers
-- that never die, and leases that the worker knows nothing of.
if not replayed and input.want > 0 and #claimed == 0 then
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', WORKERS, FAR, '+inf', 'LIMIT', 0, 100)) do
    redis.call('ZADD', WORKERS, NOW + input.ttl, other)
  end
  for _, key in ipairs({READY, DELAYED}) do
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, FAR, '+inf', 'LIMIT', 0, 100)) do
      redis.call('ZADD', key, integer(NOW), member)
      due = NOW
    end
  end
  if input.held == 0 and leases_held(worker) > 0 then
    give_back_leases(worker, input.dead_max)
    due = NOW
  end
end

-- 8. reply
set_flag(worker, 'starting', state[2] == '1', input.starting)
if state[2] == '1' and not input.starting and input.seeded then
  redis.call('HSET', META, 'seeded', 1)
end
if not replayed then
  set_flag(worker, 'waiting', state[3] == '1', input.want > 0 and #claimed == 0)
end
count('claimed', #claimed)
local counts = flush_counts()
if not replayed and number_of(meta[12]) ~= math.floor(NOW / 1e7) then
  sampler()({run = meta[1], sampled = meta[12]})
end

local leases = {}
if replayed then
  local at, first, last, suffix = string.match(state[5] or '', '^(%d+) (%d+) (%d+)(%.%d+)$')
  if tonumber(at) == seq then
    local ids = {}
    -- Other programs may have written there: the first one, and a bounded number behind it.
    for i = 0, math.max(0, math.min(last - first, CHUNK)) do
      ids[#ids + 1] = integer(first + i) .. suffix
    end
    for i, record in ipairs(redis.call('HMGET', leases_of(worker), unpack(ids))) do
      if record and origin_of(record) then
        leases[#leases + 1] = ids[i]
        leases[#leases + 1] = record
      end
    end
  end
elseif #claimed > 0 then
  local number = counts.claimed - #claimed
  -- The time keeps an id from being used again after the counter lost its last values.
  local suffix = '.' .. integer(NOW)
  for i, record in ipairs(claimed) do
    leases[2 * i - 1] = integer(number + i) .. suffix
    leases[2 * i] = record
  end
  in_chunks(#leases, function(first, last)
    redis.call('HSET', leases_of(worker), unpack(leases, first, last))
  end)
  redis.call('HSET', worker_key(worker), 'claims', input.acked + 1 .. ' ' .. integer(number + 1)
    .. ' ' .. integer(number + #claimed) .. suffix)
end

local finished = leases_held(worker) == 0 and all_finished()
local ended = not replayed and (#done > 0 or #dead > 0 or input.delivered)
local news = finished and (ended or state[2] == '1')
if added > 0 or news then wake(counts, news) end
if limited and replayed then
  local slots = {}
  for _, item in ipairs(turns) do slots[item[1]] = true end
  for i = 2, #leases, 2 do slots[origin_of(leases[i])] = true end
  for slot in pairs(slots) do
    local turn = turn_of(worker, slot)
    -- The lost reply may have brought the turn, and with it what other workers have started.
    if turn[2] > 0 then turn[3] = 1 end
    told[#told + 1] = turn
  end
end
if limited and #claimed == 0 and more_are_due then
  due = NOW -- more are due, and slots that gave nothing have been moved behind them
elseif limited and #claimed == 0 then
  local first = redis.call('ZRANGEBYSCORE', READY, '(' .. integer(NOW), '+inf', 'WITHSCORES',
    'LIMIT', 0, 1)
  if first[2] then due = math.min(due or tonumber(first[2]), tonumber(first[2])) end
end
local ask_again = -1
if #leases > 0 then
  ask_again = 0
elseif due then
  ask_again = math.max(0, math.ceil((due - NOW) / 1000))
end
local silent = ms_until_dead(meta[8], meta[9])
-- Counts may be of another hand, so it is looked when nothing else is there to do.
local post_due = input.hold and (counts.posted > 0 or #claimed == 0) and first_post()
local stuck = limited and not paused and stuck_for(counts, meta[7]) or -1
local answer = {outcome = outcome, created = counts.created, finished = counts.finished,
  complete = finished, waiting = counts.waiting, dead = counts.dead, full = full,
  overdue_in = silent, next_due = ask_again, turns = told, stuck = stuck,
  post_due = post_due and math.max(0, math.ceil((post_due - NOW) / 1000)) or -1,
  told = readable(paused and state[6] ~= 'stop' and 'paused' or state[6] or '')}
local reply = {replayed and 'replayed' or 'ok', cmsgpack.pack(answer), key_in_the_way or ''}
for i = 1, #leases do reply[3 + i] = leases[i] end
return reply
