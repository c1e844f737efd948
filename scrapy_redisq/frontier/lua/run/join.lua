-- Begins or resumes a run, and registers a worker in it.
--
-- Input    intent (why somebody joins:
--            "crawl"   a worker of this run or the next, on shard 0, which decides
--            "push"    a producer, on shard 0: takes the configuration that is there
--            "follow"  on another shard, to be in the run that shard 0 is in
--            "return"  a worker that was taken for dead comes back into its run),
--          run (id of the run to be begun, if one is; to follow; to return to), format,
--          config {name = text}, any_shards (another number of them is taken as it is), worker (''
--          for a producer), info {field, value...} (of the worker), ttl (us), limits {pattern =
--          text...} (see shared/slots/limits.lua; false: those that are there stay), throttle (text
--          of AutoThrottle's terms, or ''), seen_ttl (us, 0: none; that of the last worker counts),
--          release, settings (what a worker runs, or '');
--          not push: since (us by run/server.lua of shard 0: when the worker was started);
--          crawl: name, resume, keep_alive (REDISQ_RUN or '', and so on), max_pending, max_memory
--          (numbers as texts, or ''), lost (us: when a young run began that other shards have, which
--          this one has lost if its own is older; 0: there is none) and origin (us: see
--          run/look.lua); crawl and push: keep_seen;
--          push: keep_config (also a new run takes the stored one, and what was seen if the last
--          worker kept that); follow: began (us), inherits, begun (shard 0 knows that this one has
--          begun the run); return: former (its id until then), on shard 0 also name and keep_alive
-- Reply    msgpack map with `status`:
--            ok         with run, began (us), new (this call began it), inherits, name, config,
--                       begun (shards that have begun it for good), generation, trash (dupefilters
--                       that wait to be deleted), former_shards (how many former runs had at most,
--                       if their keys are still there), full (Redis is at its maxmemory), paused
--                       (the crawl is; on shard 0)
--            over       the run of this worker is complete; with run, name, `ago` (us; -1: unknown)
--            named      the unfinished run has another `name`
--            wait       workers of the run that is to be forgotten may still come back: again later
--            clear      run/clear.lua must be called until it is done, then this again
--            lost       the run to follow or return to is gone
--            shard_lost this shard had begun the run to follow, and does not know it
--            format     the frontier has another `format`
--            differs    `differences` {name = {stored, given}}
--            foreign    `key` is of another type, `kind`, or was damaged ('')
-- Effect   without live workers, slots that were set aside are tried again
-- Cost     O(limits); with other limits than before about 1,000 slots are looked at
-- Retry    safe: a worker's id is its own, and a begun run is resumed
-- Memory   nothing is refused at maxmemory: see sign_of_life() in shared/workers.lua
-- Include  shared/counts shared/workers shared/run_state shared/slots/state shared/slots/limits
--          shared/slots/backoff past=shared/past

local function reply(status, fields)
  local answer = fields or {}
  answer.status = status
  return cmsgpack.pack(answer)
end

for kind, keys in pairs({hash = {META, CLOCK, COUNTS, BUSY, LETTERS, ROBOTS, POSTED, LIMITS, TAKEN},
    zset = {READY, DELAYED, WORKERS, ALL_WORKERS, DEAD, ASIDE, PAUSED, RULED, ROBOTS_UNTIL, ENDED,
      POST},
    list = {TRASH}}) do
  for _, key in ipairs(keys) do
    local found = redis.call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then return reply('foreign', {key = key, kind = found}) end
  end
end

local meta, intent, name, lost = hash_of(META), input.intent, input.name or '', input.lost or 0
if meta.corrupt then return reply('foreign', {key = meta.corrupt, kind = ''}) end
if meta.format and tonumber(meta.format) ~= input.format then
  return reply('format', {format = tonumber(meta.format)})
end

-- A producer that does not know the project does as its last worker did.
if input.keep_config and meta.keep_seen then input.keep_seen = true end

-- The worker was started before that time; not known if the clock has gone back since then, or since
-- the last sign of life: then it stands still until it is there again.
local function is_older_than(time)
  time = number_of(time)
  return NOW == SERVER_TIME + BEHIND and NOW >= time and input.since < time
end

-- -> {field = {stored, given}} where the configuration is not the run's, except where it
-- `may_differ(field)`; nil: nowhere. A producer may have begun the run without knowing the spider
-- and its arguments.
local function differences_but(may_differ)
  local found
  for field, given in pairs(input.config) do
    local stored = meta['config:' .. field]
    local is_unknown = (field == 'spider' or field == 'arguments')
      and (stored == '' or given == '')
    -- No worker has a turn of slots that are shared by that name.
    is_unknown = is_unknown or field == 'limits_name' and live_workers() == 0
    if stored and stored ~= given and not is_unknown and not may_differ(field) then
      found = found or {}
      found[field] = {stored, given}
    end
  end
  return found
end

-- As differences_but(), where the run is of another spider, or has other arguments.
local function of_another_crawl()
  return differences_but(function(field) return field ~= 'spider' and field ~= 'arguments' end)
end

-- This shard has lost a run: a new one goes on with all that the other shards have of it.
local goes_on = intent == 'crawl' and number_of(meta.began) < lost
-- No run begins again by a name that has ended. Other workers may open the last run again.
local mine = name ~= '' and meta.name == name

-- What this shard has is of a run before the one that was lost.
local is_before = false

-- -> as decide(), of who crawls
local function decide_of_crawl()
  local has_ended = name ~= '' and redis.call('ZSCORE', ENDED, name)
  if has_ended and not (mine and (meta.state == 'open' or input.keep_alive)) then return 'over' end
  -- The keys here are of an earlier run, which was complete or forgotten.
  if goes_on then
    is_before = number_of(meta.began) < input.origin
    return meta.state == 'open' and input.keep_seen and not is_before and 'renew' or 'begin'
  end
  if meta.state == 'complete' then
    local late = name == '' and is_older_than(meta.ended) and not of_another_crawl()
    if input.keep_alive and (mine or late) then return 'resume' end
    return late and 'over' or 'begin'
  end
  if meta.state ~= 'open' then return 'begin' end
  -- A worker that was started before the run began is one of several that were to begin it.
  if not input.resume and not has_ended and live_workers() == 0
      and not is_older_than(meta.began) then
    -- Workers without a sign of life may only have been cut off, as this one was.
    redis.call('ZREM', WORKERS, '') -- a first write that removes: works at maxmemory too
    if ms_until_dead(meta.sign, meta.patient) > 0 then return 'wait' end
    return input.keep_seen and 'renew' or 'begin'
  end
  if name ~= '' and meta.name and not mine then return 'named' end
  return 'resume'
end

-- Nothing of a run waits here, and no worker is registered.
local is_empty = redis.call('EXISTS', READY, DELAYED, WORKERS, BUSY, POST) == 0

-- -> "resume", "begin", "renew" (a new run with all that is left of the old one), or the status
-- to reply with
local function decide()
  if intent == 'return' then return meta.run == input.run and 'resume' or 'lost' end
  if intent == 'follow' then
    if meta.run == input.run then return 'resume' end
    if number_of(meta.began) >= input.began then return 'lost' end
    -- It has lost all that it had of this run: half a frontier is not begun over the other half.
    -- No server loses meta and keeps the rest: somebody has deleted it.
    if input.begun or not (meta.state or is_empty) then return 'shard_lost' end
    -- It never came to the run that was lost: what it has is of one before.
    local origin = tonumber(string.match(input.inherits, '^since (%d+)$') or '')
    is_before = origin and number_of(meta.began) < origin
    return input.inherits ~= '' and not is_before and meta.state == 'open' and 'renew' or 'begin'
  end
  if intent == 'push' then
    local reopens = meta.state == 'complete' and meta.name
    return (meta.state == 'open' or reopens) and 'resume' or 'begin'
  end
  return decide_of_crawl()
end

local decision = decide()
if decision == 'over' then
  local others = mine and of_another_crawl()
  if others then return reply('differs', {differences = others}) end
  local ago = meta.ended and (name == '' or mine) and math.max(0, NOW - number_of(meta.ended)) or -1
  return reply('over', {run = meta.run or '', name = name, ago = ago})
elseif decision ~= 'resume' and decision ~= 'begin' and decision ~= 'renew' then
  return reply(decision, {name = meta.name})
end
local resumes = decision == 'resume'

-- A new run inherits from the one before: nothing, "seen" URLs and dead letters, "all", or what shards
-- have of runs that have begun "since" then, which shard 0 has lost. One that people have reset leaves
-- nothing, though other shards may still have all.
local was_reset = meta.state == 'resetting' and not meta.generation
local inherits = meta.inherits or ''
if not resumes then
  inherits = decision == 'renew' and 'all' or ''
  if intent == 'follow' then inherits = input.inherits
  elseif decision == 'begin' and input.keep_seen and not was_reset then inherits = 'seen' end
end
local keeps_seen = inherits ~= '' and not is_before and meta.generation
if goes_on then inherits = 'since ' .. integer(input.origin) end

if intent ~= 'push' and (resumes or keeps_seen) then
  -- The backend is what the run was begun with. A new run has arguments of its own.
  local found = differences_but(function(field)
    return field == 'backend' or (field == 'arguments' and not resumes)
      or (field == 'shards' and input.any_shards)
  end)
  if found then return reply('differs', {differences = found}) end
end

if decision == 'begin' and not is_empty then
  if meta.state and meta.state ~= 'resetting' then begin_reset(meta) end
  if not keeps_seen then throw_away_seen(meta) end -- also if another one goes on from here
  return reply('clear')
end

local nobody_alive, full = live_workers() == 0, false
if input.worker == '' then
  redis.call('ZREM', WORKERS, '') -- a first write that removes: works at maxmemory too
else
  full = sign_of_life(input.worker)
end

-- Keeps a field of meta, or none in the place of '' and false.
local function keep(field, value)
  if value and value ~= '' then redis.call('HSET', META, field, value)
  else redis.call('HDEL', META, field) end
end

-- The counts of a new run: of requests that it inherits, and numbers that are never used twice.
local function counts_of_new_run()
  local old, letters = hash_of(COUNTS), keeps_seen and redis.call('ZCARD', DEAD) or 0
  local counts = {created = letters, finished = letters, dead = letters, letters = old.letters}
  if decision == 'renew' then
    counts.created = letters + number_of(old.created) - number_of(old.finished)
    for _, field in ipairs({'leased', 'starting', 'waiting', 'claimed', 'delays', 'posted'}) do
      counts[field] = old[field]
    end
  end
  return counts
end

-- Tokens of dead workers go back to the slots that are shared no more.
if intent == 'crawl' and input.config.limits_name ~= meta['config:limits_name'] then
  for _, worker in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do return_tokens(worker) end
end

local function begin_run()
  local counts = counts_of_new_run()
  redis.call('DEL', META, COUNTS)
  redis.call('UNLINK', ROBOTS, ROBOTS_UNTIL, TAKEN, seen_base('recent:0'), seen_base('recent:1'))
  for field, number in pairs(counts) do
    if tonumber(number) ~= 0 then redis.call('HSET', COUNTS, field, number) end
  end
  if meta.run then throw_away_starts(meta.run) end
  if not keeps_seen then
    redis.call('UNLINK', DEAD, LETTERS)
    throw_away_seen(meta)
  end
  redis.call('HSET', META, 'format', input.format, 'run', input.run, 'inherits', inherits,
    'generation', keeps_seen or input.run, 'sign', integer(NOW),
    'began', integer(input.began or math.max(NOW, number_of(meta.began) + 1, lost + 1)))
  for _, field in ipairs({'limited', 'budgets', 'throttle', 'sampled', 'release', 'settings', 'max_pending',
      'max_memory', 'paused', 'feeds'}) do
    keep(field, meta[field])
  end
  for _, field in ipairs(keeps_seen and {'older', 'seen_ttl', 'rotates'} or {}) do
    keep(field, meta[field])
  end
  -- Without workers it may have gone back since the last sign of life.
  if NOW ~= SERVER_TIME then redis.call('HSET', CLOCK, 'behind', integer(NOW - SERVER_TIME)) end
  for field, value in pairs(input.config) do
    local stored = meta['config:' .. field]
    local keeps = input.keep_config and field ~= 'arguments' or keeps_seen and field == 'backend'
    if stored and keeps then value = stored end
    redis.call('HSET', META, 'config:' .. field, value)
    if field == 'order' then redis.call('HSET', META, 'order', value) end
  end
  -- Shards that only former runs had are deleted in the background.
  local shards = math.max(number_of(meta.shards), number_of(meta['config:shards']))
  if shards > 0 then redis.call('HSET', META, 'shards', shards) end
end

if not resumes then
  begin_run()
elseif intent ~= 'push' then
  for _, field in ipairs({'spider', 'arguments', 'limits_name'}) do
    local given = input.config[field]
    if given ~= '' or field == 'limits_name' then
      redis.call('HSET', META, 'config:' .. field, given)
    end
  end
end
if not resumes and (intent == 'crawl' or intent == 'push') then
  past().mark('began', input.worker, name ~= '' and name or input.run)
end
-- Who returns says only what no other worker may: the server can have forgotten it.
if name ~= '' and (intent == 'crawl' or not meta.name) then keep('name', name) end
if input.keep_alive then keep('keep_alive', 1) end
if intent == 'crawl' then
  keep('feeds', input.feeds)
  keep('keep_seen', input.keep_seen and 1)
  keep('max_pending', input.max_pending)
  keep('max_memory', input.max_memory)
  for field, kind in pairs({release = 'release', settings = 'configuration'}) do
    local given = input[field]
    if given ~= '' and given ~= meta[field] then
      if meta[field] then past().mark(kind, input.worker, given) end
      keep(field, given)
    end
  end
end

-- Who returns brings its limits again if the server has kept none of a later worker.
local brings = intent ~= 'return' or input.since >= number_of(meta.limits_since)
if input.limits and brings then
  keep('limits_since', integer(input.since))
  local old, changed, budgets = hash_of(LIMITS), false, false
  redis.call('DEL', LIMITS)
  for pattern, text in pairs(input.limits) do
    changed, old[pattern] = changed or old[pattern] ~= text, nil
    redis.call('HSET', LIMITS, pattern, text)
    budgets = budgets or budget_of(text) > 0
  end
  keep('budgets', budgets and 1)
  keep('throttle', input.throttle)
  -- Stays: slots may be parked, or a person may have said something about them.
  local shares = input.config.limits_name ~= ''
  if next(input.limits) or input.throttle ~= '' or shares then keep('limited', 1) end
  -- The slots that wait longest may do so for hours because of former limits.
  if changed or next(old) then
    for _, slot in ipairs(redis.call('ZREVRANGE', READY, 0, 999)) do look_again(slot) end
  end
end

-- A person who starts a crawl again wants slots that were set aside tried again.
if nobody_alive then
  redis.call('HDEL', META, 'stuck')
  if redis.call('ZCARD', ASIDE) > 0 then
    redis.call('HSET', META, 'retry', integer(NOW))
    retry_aside(integer(NOW))
  end
end

-- A worker that returns may find that the others have completed the run meanwhile; it is opened
-- again by what this worker adds to it (see exchange.lua).
if intent ~= 'return' then
  redis.call('HSET', META, 'state', 'open')
  if intent ~= 'follow' then redis.call('HDEL', META, 'sealed') end
end

if input.worker ~= '' then
  ms_until_dead(resumes and meta.sign, resumes and meta.patient)
  local key, ttl = worker_key(input.worker), input.seen_ttl
  -- What was recorded until now counts from now on.
  if brings and ttl ~= number_of(redis.call('HGET', META, 'seen_ttl')) then
    keep('seen_ttl', ttl > 0 and integer(ttl))
    keep('rotates', ttl > 0 and integer(NOW + ttl))
  end
  -- When this arrives once more, and late, the worker may have exchanged already.
  redis.call('HSETNX', key, 'seq', 0)
  redis.call('HSET', key, 'ttl', input.ttl, 'since', integer(NOW), 'release', input.release,
    'settings', input.settings, unpack(input.info))
  set_flag(input.worker, 'starting', redis.call('HGET', key, 'starting') == '1', true)
  flush_counts()
  -- A worker that has returned under a new id gets the order that was left under its former one.
  local told = input.former and redis.call('HGET', worker_key(input.former), 'told')
  if told then
    redis.call('HSET', key, 'told', told)
    redis.call('DEL', worker_key(input.former))
  end
end

meta = hash_of(META)
local config, begun = {}, {}
for field, value in pairs(meta) do
  local kind, of = string.match(field, '^(%w+):(.*)$')
  if kind == 'config' then config[of] = value end
  if kind == 'begun' then begun[#begun + 1] = tonumber(of) end
end
return reply('ok', {run = meta.run, began = number_of(meta.began), new = not resumes,
  inherits = meta.inherits or '', name = meta.name or '', config = config, begun = begun,
  generation = meta.generation, trash = redis.call('LLEN', TRASH),
  former_shards = number_of(meta.shards), full = full, paused = meta.paused ~= nil})
