-- Begins or resumes a run, and registers a worker in it.
--
-- Input    intent (why somebody joins:
--            "crawl"   a worker of this run or the next, on shard 0, which decides
--            "push"    a producer, on shard 0: takes the configuration that is there
--            "follow"  on another shard, to be in the run that shard 0 is in
--            "return"  a worker that was taken for dead comes back into its run),
--          former (its id until then; of who returns),
--          run (id of the run to be begun, if one is; to follow; to return to), format (a number),
--          config {name = text}, any_shards (another number of them is taken as it is), worker (''
--          for a producer), info {field, value...} (of the worker), ttl (us), limits {pattern =
--          text...} (see shared/slots/state.lua; false: those that are there stay), throttle (text
--          of AutoThrottle's terms, see there, or ''), release, settings (these two: what a worker
--          runs, '' if that is not known), name, resume, keep_alive, keep_seen
--          (REDISQ_RUN or '', and so on, of who crawls; the last one also of who pushes),
--          max_pending, max_memory (numbers as texts, or ''; of who crawls), since (us by
--          run/clock.lua: when the worker that crawls was started), lost (us, of who crawls: when a
--          young run began that other shards have, which this one has lost if its own is older; 0:
--          there is none), keep_config (of who pushes: also a new run takes the stored one, and
--          what was seen if the last worker kept that), began (us), inherits, begun (whether shard
--          0 knows that this one has begun the run; all three of who follows)
-- Reply    msgpack map with `status`:
--            ok         with run, began (us), new (this call began it), inherits, name, config,
--                       begun (shards that have begun it for good), generation, trash (dupefilters
--                       that wait to be deleted), former_shards (how many former runs had at most,
--                       if their keys are still there), full (Redis is at its maxmemory)
--            over       the run that this worker belongs to is complete; with run, name, and `ago`
--                       (us; -1: not known)
--            named      the unfinished run has another name (`name`)
--            wait       workers of the run that is to be forgotten may still come back: again later
--            clear      run/clear.lua must be called until it is done, then this again
--            lost       the run to follow or return to is gone
--            shard_lost this shard had begun the run to follow, and does not know it
--            format     the frontier has another format (`format`)
--            differs    `differences` {name = {stored, given}}
--            foreign    `key` is not of the type it must be, but of `kind`; or it was ('', see
--                       shared/guard.lua)
-- Effect   without live workers, slots that were set aside are tried again
-- Cost     O(limits); with other limits than before about 1,000 slots are looked at
-- Retry    safe: a worker's id is its own, and a begun run is resumed
-- Memory   nothing is refused at maxmemory: see sign_of_life() in shared/workers.lua
-- Include  shared/keys shared/texts shared/clock shared/counts shared/workers shared/run_state
--          shared/slots/state shared/slots/aside shared/marks

local function reply(status, fields)
  local answer = fields or {}
  answer.status = status
  return cmsgpack.pack(answer)
end

for key, kind in pairs({[META] = 'hash', [COUNTS] = 'hash', [READY] = 'zset', [DELAYED] = 'zset',
    [BUSY] = 'hash', [WORKERS] = 'zset', [DEAD] = 'zset', [ASIDE] = 'zset', [PAUSED] = 'zset',
    [RULED] = 'zset', [LETTERS] = 'hash', [REAPED] = 'string', [TRASH] = 'list',
    [ROBOTS] = 'hash', [ROBOTS_UNTIL] = 'zset', [ENDED] = 'zset',
    [POST] = 'zset', [POSTED] = 'hash', [LIMITS] = 'hash'}) do
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then return reply('foreign', {key = key, kind = found}) end
end

local meta, intent = meta_of_run(), input.intent
if meta.corrupt then return reply('foreign', {key = meta.corrupt, kind = ''}) end
if meta.format and tonumber(meta.format) ~= input.format then
  return reply('format', {format = tonumber(meta.format)})
end

-- Who does not know the project does as its last worker did.
if input.keep_config and meta.keep_seen then input.keep_seen = true end

-- The worker was started before that time; not if the clock has gone back since.
local function is_older_than(time)
  time = number_of(time)
  return NOW >= time and input.since < time
end

-- -> {name = {stored, given}} where the run is of another spider, or has other arguments; else nil.
local function of_another_crawl()
  local differences, differ = {}, false
  for _, name in ipairs({'spider', 'arguments'}) do
    local stored, given = meta['config:' .. name] or '', input.config[name]
    if stored ~= '' and given ~= '' and stored ~= given then
      differences[name], differ = {stored, given}, true
    end
  end
  return differ and differences or nil
end

-- Of a run that this shard has lost goes on in a new one what the others have.
local goes_on = intent == 'crawl' and number_of(meta.began) < input.lost

-- -> "resume", "begin", "renew" (a new run with all that is left of the old one), or the status
-- to reply with
local function decide()
  if intent == 'return' then return meta.run == input.run and 'resume' or 'lost' end
  if intent == 'follow' then
    if meta.run == input.run then return 'resume' end
    if number_of(meta.began) >= input.began then return 'lost' end
    -- It has lost all that it had of this run: half a frontier is not begun over the other half.
    if input.begun then return 'shard_lost' end
    return input.inherits == 'all' and meta.state == 'open' and 'renew' or 'begin'
  end
  if intent == 'push' then
    local reopens = meta.state == 'complete' and meta.name
    return (meta.state == 'open' or reopens) and 'resume' or 'begin'
  end
  -- Of a name that has ended no run begins again; the last one may be opened again by other
  -- workers.
  local mine = input.name ~= '' and meta.name == input.name
  local has_ended = input.name ~= '' and redis.call('ZSCORE', ENDED, input.name)
  if has_ended and not (mine and (meta.state == 'open' or input.keep_alive)) then return 'over' end
  -- What this shard still has is of an earlier run, which was complete or forgotten.
  if goes_on then return meta.state == 'open' and input.keep_seen and 'renew' or 'begin' end
  if meta.state == 'complete' then
    local late = input.name == '' and is_older_than(meta.ended)
      and not of_another_crawl()
    if input.keep_alive and (mine or late) then return 'resume' end
    return late and 'over' or 'begin'
  end
  if meta.state ~= 'open' then return 'begin' end
  -- A worker that was started before the run began is one of several that were to begin it.
  if not input.resume and not has_ended and live_workers() == 0
      and not is_older_than(meta.began) then
    -- Who gave no sign of life in time may only have been cut off, as this one was.
    redis.call('ZREM', WORKERS, '') -- a first write that removes: works at maxmemory too
    if ms_until_dead(meta.sign, meta.patient) > 0 then return 'wait' end
    return input.keep_seen and 'renew' or 'begin'
  end
  if input.name ~= '' and meta.name and not mine then return 'named' end
  return 'resume'
end

local decision = decide()
if decision == 'over' then
  local others = input.name ~= '' and meta.name == input.name and of_another_crawl()
  if others then return reply('differs', {differences = others}) end
  local ago = meta.ended and (input.name == '' or meta.name == input.name)
    and math.max(0, NOW - number_of(meta.ended)) or -1
  return reply('over', {run = meta.run or '', name = input.name, ago = ago})
elseif decision == 'named' then
  return reply('named', {name = meta.name})
elseif decision == 'lost' or decision == 'wait' or decision == 'shard_lost' then
  return reply(decision)
end

-- What a new run has of the one before: nothing, what was "seen" and the dead letters, or "all".
local inherits = meta.inherits or ''
if decision ~= 'resume' then
  inherits = decision == 'renew' and 'all' or ''
  if intent == 'follow' then inherits = input.inherits
  elseif decision == 'begin' and input.keep_seen then inherits = 'seen' end
end
local keeps_seen = inherits ~= '' and meta.generation
if goes_on then inherits = 'all' end

if intent ~= 'push' and (decision == 'resume' or keeps_seen) then
  local differences, differ = {}, false
  for name, given in pairs(input.config) do
    local stored = meta['config:' .. name]
    -- The backend is what the run was begun with; a producer may have begun it without knowing
    -- the spider and its arguments. A new run has arguments of its own.
    local free_to_differ = name == 'backend'
      or ((name == 'spider' or name == 'arguments') and (stored == '' or given == ''))
      or (name == 'arguments' and decision ~= 'resume')
      or (name == 'shards' and input.any_shards)
    if stored and stored ~= given and not free_to_differ then
      differences[name] = {stored, given}
      differ = true
    end
  end
  if differ then return reply('differs', {differences = differences}) end
end

if decision == 'begin' and not is_empty() then
  if meta.state and meta.state ~= 'resetting' then begin_reset(meta) end
  return reply('clear')
end

local nobody_alive, full = live_workers() == 0, false
if input.worker == '' then
  redis.call('ZREM', WORKERS, '') -- a first write that removes: works at maxmemory too
else
  full = sign_of_life(input.worker)
end

-- The counts of a new run: what it has of the one before, and numbers that are never used twice.
local function counts_of_new_run()
  local old, letters = hash_of(COUNTS), keeps_seen and redis.call('ZCARD', DEAD) or 0
  local counts = {created = letters, finished = letters, dead = letters, letters = old.letters}
  if decision == 'renew' then
    counts.created = letters + number_of(old.created) - number_of(old.finished)
    for _, name in ipairs({'leased', 'starting', 'waiting', 'claimed', 'delays', 'posted'}) do
      counts[name] = old[name]
    end
  end
  return counts
end

if decision ~= 'resume' then
  local counts = counts_of_new_run()
  redis.call('DEL', META, COUNTS)
  redis.call('UNLINK', ROBOTS, ROBOTS_UNTIL, seen_base('recent:0'), seen_base('recent:1'))
  for name, number in pairs(counts) do
    if tonumber(number) ~= 0 then redis.call('HSET', COUNTS, name, number) end
  end
  if meta.run then throw_away_sets(meta.run) end
  if not keeps_seen then
    redis.call('UNLINK', DEAD, LETTERS)
    if meta.generation then throw_away(meta['config:backend'], meta.generation) end
  end
  redis.call('HSET', META, 'format', input.format, 'run', input.run, 'inherits', inherits,
    'generation', keeps_seen or input.run,
    'began', integer(input.began or math.max(NOW, number_of(meta.began) + 1, input.lost + 1)))
  for _, name in ipairs({'limited', 'throttle', 'sampled', 'release', 'settings', 'max_pending',
      'max_memory', 'paused'}) do
    if meta[name] then redis.call('HSET', META, name, meta[name]) end
  end
  -- Without workers it may have gone back since the last sign of life, which is not kept.
  if NOW ~= SERVER_TIME then redis.call('HSET', META, 'behind', integer(NOW - SERVER_TIME)) end
  for name, value in pairs(input.config) do
    local stored = meta['config:' .. name]
    local keeps = input.keep_config and name ~= 'arguments'
    if stored and (keeps or (keeps_seen and name == 'backend')) then value = stored end
    redis.call('HSET', META, 'config:' .. name, value)
    if name == 'order' then redis.call('HSET', META, 'order', value) end
  end
  -- Shards that only former runs had are deleted in the background.
  local shards = math.max(number_of(meta.shards), number_of(meta['config:shards']))
  if shards > 0 then redis.call('HSET', META, 'shards', shards) end
elseif intent ~= 'push' then
  for _, name in ipairs({'spider', 'arguments'}) do
    local given = input.config[name]
    if given ~= '' then redis.call('HSET', META, 'config:' .. name, given) end
  end
end
if intent == 'crawl' then
  if input.name ~= '' then redis.call('HSET', META, 'name', input.name) end
  if input.keep_alive then redis.call('HSET', META, 'keep_alive', 1) end
  if input.keep_seen then redis.call('HSET', META, 'keep_seen', 1)
  else redis.call('HDEL', META, 'keep_seen') end
  for _, name in ipairs({'max_pending', 'max_memory'}) do
    if input[name] ~= '' then redis.call('HSET', META, name, input[name])
    else redis.call('HDEL', META, name) end
  end
end

if decision ~= 'resume' and (intent == 'crawl' or intent == 'push') then
  mark('began', input.worker, input.name ~= '' and input.name or input.run)
end
for name, kind in pairs({release = 'release', settings = 'configuration'}) do
  if intent == 'crawl' and input[name] ~= '' and input[name] ~= meta[name] then
    if meta[name] then mark(kind, input.worker, input[name]) end
    redis.call('HSET', META, name, input[name])
  end
end

local function are_there(limits)
  local found, n = redis.call('HGETALL', LIMITS), 0
  for i = 1, #found, 2 do
    if limits[found[i]] ~= found[i + 1] then return false end
  end
  for _ in pairs(limits) do n = n + 1 end
  return #found == 2 * n
end

if input.limits then
  local changed = not are_there(input.limits)
  redis.call('DEL', LIMITS)
  for pattern, text in pairs(input.limits) do redis.call('HSET', LIMITS, pattern, text) end
  if input.throttle ~= '' then redis.call('HSET', META, 'throttle', input.throttle)
  else redis.call('HDEL', META, 'throttle') end
  -- Stays: slots may be parked, or a person may have said something about them.
  if next(input.limits) or input.throttle ~= '' then redis.call('HSET', META, 'limited', 1) end
  -- Those that wait longest may do so for hours because of what was the limit before.
  for _, slot in ipairs(changed and redis.call('ZREVRANGE', READY, 0, 999) or {}) do
    look_again(slot, first_start(slot_of(slot)) - EARLY)
  end
end

-- Who starts a crawl again wants slots that were set aside tried again.
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
  local same_run = decision == 'resume'
  ms_until_dead(same_run and meta.sign, same_run and meta.patient)
  -- When this arrives once more, and late, the worker may have exchanged already.
  redis.call('HSETNX', worker_key(input.worker), 'seq', 0)
  redis.call('HSET', worker_key(input.worker), 'ttl', input.ttl,
    'since', integer(NOW), 'release', input.release, 'settings', input.settings,
    unpack(input.info))
  local was = redis.call('HGET', worker_key(input.worker), 'starting') == '1'
  set_flag(input.worker, 'starting', was, true)
  flush_counts()
  if input.former then take_over_orders(input.worker, input.former) end
end

meta = hash_of(META)
local config, begun = {}, {}
for field, value in pairs(meta) do
  local name = string.match(field, '^config:(.*)$')
  if name then config[name] = value end
  local shard = string.match(field, '^begun:(%d+)$')
  if shard then begun[#begun + 1] = tonumber(shard) end
end
return reply('ok', {run = meta.run, began = number_of(meta.began), new = decision ~= 'resume',
  inherits = meta.inherits or '', name = meta.name or '', config = config, begun = begun,
  generation = meta.generation, trash = redis.call('LLEN', TRASH),
  former_shards = number_of(meta.shards), full = full})
