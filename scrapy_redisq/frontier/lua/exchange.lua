-- The hot path in one step: heartbeat, enqueue, finish, promote, claim. A page's links are in the
-- log before its end, or with it, so that every prefix of Redis' log is a correct frontier.
--
-- Input    worker, run, acked (number of the last exchange whose reply arrived), ttl (us), seen
--          (parameters of the dupefilter), want (entries to claim), slot_limit, suspect_from
--          (deliveries from which an entry is a suspect: it may be what its workers died of),
--          suspects (how many of those to claim at most), most_bytes (of an entry), starting,
--          seeded, pages, items, dead_max; if there is some: queues, enqueue, also (see
--          shared/enqueue.lua), letters {{identity, slot, priority, entry or '', reason, detail,
--          error, status}...} (of what could not be enqueued), done {{slot, {lease...}}...},
--          retried {{lease, priority, serialised request, ms}...}, released {{lease, serialised
--          request in the place of its own (its slot backs off)}...}, dead {{lease, reason, detail,
--          error, status, whether nobody has enqueued it}...}, posts {{id, links}...} (see
--          shared/post.lua), hold (us, for these; with shards on several servers only), delivered
--          {id...} (posts that are no longer needed), begun {shard...} (that have begun the run for
--          good), room {slot = limit}, tally {count = what is added to it}, extremes {count =
--          value} (see keep_counts()), turns {{slot, ... (see report_turn()), entries to claim of
--          it}...}, results {{slot, ... (see report_download())}...}, back_off (terms for these),
--          report (JSON, of the worker), history {{id, record}...} (of what it finishes),
--          history_max (records that are kept)
-- Reply    {status} or {status, msgpack map, {lease, record, lease, record...}}. The map has
--          outcome (see enqueue()), created, finished, complete (see all_finished()), waiting,
--          dead, full (Redis is at its maxmemory), overdue_in (ms until a worker may be dead; 0:
--          one is), next_due (ms until it is worth asking again; -1: nothing waits), turns
--          {turn...} (see told_of()), stuck (see stuck_for()), post_due (ms until somebody should
--          take the oldest post; -1: there is none), told (by people, see orders.lua; 'paused'
--          while the crawl is; or ''). The status is
--            ok       it was applied
--            replayed it had been applied before; the leases are those of its last claim
--            gone     the worker was reaped or is unknown: it must join again
--            rewound  the server lost acknowledged exchanges: it must leave and join again
--            lost     the run is gone
--            sealed   the shard must be opened before something is enqueued, see run/reopen.lua;
--                     nothing was applied
-- Cost     O(entries moved + slots touched), whatever is queued
-- Retry    safe: exchanges are numbered, an applied one is not applied again
-- Memory   nothing is refused at maxmemory: see sign_of_life() in shared/workers.lua
-- Include  shared/counts shared/workers shared/dead shared/enqueue shared/leases
--          shared/queues shared/claim shared/slots/state shared/slots/backoff shared/slots/turns
--          shared/post past=shared/past

local worker, NONE = input.worker, {}

-- 1. run
local meta = fields_of(META, 'run', 'order', 'generation', 'older', 'rotates', 'state', 'limited',
  'budgets', 'throttle', 'stuck', 'sign', 'patient', 'retry', 'sealed', 'sampled', 'paused',
  'corrupt')
if meta.run ~= input.run then return {'lost'} end
if meta.corrupt then corrupt(meta.corrupt) end
if not meta.generation then corrupt(META) end
local me = fields_of(worker_key(worker), 'seq', 'starting', 'waiting', 'duplicates', 'told')

-- 2. replay check
local seq = tonumber(me.seq or '')
if not seq or not is_member(worker) then return {'gone'} end
if seq < input.acked then return {'rewound'} end
local replayed = seq > input.acked
if meta.sealed and input.enqueue and not replayed then return {'sealed'} end
if meta.paused then input.want = 0 end

-- 3. heartbeat
local full = sign_of_life(worker)
local was_starting, limited = me.starting == '1', meta.limited
read_throttle(meta.throttle)
if meta.retry then retry_aside(meta.retry) end

-- Adds to the counts in `tally`, and keeps the lowest or the highest values of `extremes`, by the end
-- of their names. Spiders make up names of stats ("stat:NAME"): there is no new one in a large hash.
local MOST_COUNTS = 1000
local function keep_counts(tally, extremes)
  local is_large = redis.call('HLEN', COUNTS) >= MOST_COUNTS
  local function is_refused(name)
    return is_large and string.sub(name, 1, 5) == 'stat:'
      and redis.call('HEXISTS', COUNTS, name) == 0
  end
  for name, by in pairs(tally) do
    if not is_refused(name) then count(name, by) end
  end
  for name, value in pairs(extremes) do
    local sign = string.sub(name, -3) == 'min' and -1 or 1
    local known = tonumber(redis.call('HGET', COUNTS, name) or '')
    if not is_refused(name) and (not known or sign * value > sign * known) then
      redis.call('HSET', COUNTS, name, integer(value))
    end
  end
end

-- Dead letters of what could not be enqueued: one for each identity, not one for each worker and
-- each time that it begins.
local function take_letters()
  local ids = {}
  for i, letter in ipairs(input.letters) do ids[i] = letter[1] end
  local new = new_starts(meta.run, ids)
  for i, letter in ipairs(input.letters) do
    local _, slot, priority, entry, reason, detail, kind, status = unpack(letter)
    if new[i] == 1 then
      bury(slot, priority, '\0' .. entry, {reason = reason, detail = detail, error = kind,
        status = status, worker = worker})
      count('created', 1)
    end
  end
end

local outcome, turns = me.duplicates or '', input.turns or NONE
if not replayed then
  -- 4. enqueue
  outcome = input.enqueue and enqueue(meta) or ''
  if input.letters then take_letters() end
  -- Other workers may have completed the run while this one was thought dead.
  if meta.state == 'complete' and (count_changes.created or 0) > (count_changes.finished or 0) then
    redis.call('HSET', META, 'state', 'open')
  end
  if input.tally or input.extremes then keep_counts(input.tally or NONE, input.extremes or NONE) end

  -- 5. finish
  for _, item in ipairs(input.results or NONE) do
    limited = report_download(item, input.back_off) or limited
  end
  finish_leases(meta.order)
  if input.posts then keep_posts(input.posts, input.hold) end
  if input.delivered then remove_posts(input.delivered) end
  for _, shard in ipairs(input.begun or NONE) do redis.call('HSET', META, 'begun:' .. shard, 1) end
  redis.call('HSET', worker_key(worker), 'seq', input.acked + 1, 'duplicates', outcome,
    'pages', input.pages, 'items', input.items)
  if input.history then past().keep_history(full and NONE or input.history, input.history_max) end
  if input.report then redis.call('HSET', worker_key(worker), 'report', input.report) end
  -- One that arrives late tells of turns and tokens that the worker has had since, or has no more.
  for _, item in ipairs(turns) do report_turn(worker, item) end
end
limited = limited or #turns > 0

-- 6. promote
local due = promote(meta.order)

-- 7. claim
local leases, told = {}, {}
if replayed then
  leases = leases_again()
else
  leases, told, due = claim(turns, limited, due)
end

-- 8. reply
set_flag(worker, 'starting', was_starting, input.starting)
if was_starting and not input.starting and input.seeded then
  redis.call('HSET', META, 'seeded', 1)
end
if not replayed then
  set_flag(worker, 'waiting', me.waiting == '1', input.want > 0 and #leases == 0)
end
local counts = flush_counts()
if not replayed and number_of(meta.sampled) ~= math.floor(NOW / 1e7) then
  past().keep_sample(meta)
end
local finished = leases_held(worker) == 0 and all_finished()
local news = finished and (was_starting
  or not replayed and (input.done or input.dead or input.delivered))
if added > 0 or news then wake(counts, news) end
if limited and replayed then told = turns_again(turns, leases) end
-- -> ms until then, -1: never
local function ms_until(time) return time and math.max(0, math.ceil((time - NOW) / 1000)) or -1 end
return {replayed and 'replayed' or 'ok', cmsgpack.pack({outcome = outcome,
  created = counts.created, finished = counts.finished, complete = finished,
  waiting = counts.waiting, dead = counts.dead, full = full,
  overdue_in = ms_until_dead(meta.sign, meta.patient),
  next_due = ms_until(#leases > 0 and NOW or due), turns = told,
  stuck = limited and stuck_for(counts, meta.stuck) or -1,
  -- Another program may have changed the counts: a worker with nothing to do looks at the keys.
  post_due = ms_until(input.hold and (counts.posted > 0 or #leases == 0) and first_score(POST)),
  told = readable(meta.paused and me.told ~= 'stop' and 'paused' or me.told or '')}), leases}
