-- Begins or resumes a run, and registers a worker in it.
--
-- Input    format (a number), config {name = text}, adopt (take the stored config as it is),
--          run (the id of the run to begin, if one must be), follow (the shard belongs to that
--          run already begun on shard 0), again (a worker comes back into that run), keep
--          (the stored config wins when a run is begun), keep_seen, backend (of config), worker ('' for none:
--          a producer), info {field, value...} of the worker, ttl (us), starting, limits {pattern =
--          text...} (see turns.lua) or false: those that are there stay, throttle (text of
--          AutoThrottle's terms, see turns.lua, or '')
-- Reply    msgpack map with `status`:
--            ok         with run, began (a new run), config, generation, trash (dupefilters
--                       that wait to be deleted)
--            format     the frontier has another format (`format`)
--            differs    `differences` {name = {stored, given}}
--            resetting  a reset was interrupted and must be carried through first
--            lost       the run to come back into is gone
--            foreign    `key` is not of the type it must be
-- Effect   without live workers, slots that were set aside are tried again
-- Cost     O(1)
-- Retry    safe: a worker's id is its own, and a begun run is resumed

local function reply(status, fields)
  local answer = fields or {}
  answer.status = status
  return cmsgpack.pack(answer)
end

for key, kind in pairs({[META] = 'hash', [COUNTS] = 'hash', [READY] = 'zset', [DELAYED] = 'zset',
    [BUSY] = 'hash', [WORKERS] = 'zset', [DEAD] = 'zset', [ASIDE] = 'zset', [PAUSED] = 'zset',
    [RULED] = 'zset', [LETTERS] = 'hash', [REAPED] = 'string', [TRASH] = 'list',
    [ROBOTS] = 'hash', [ROBOTS_UNTIL] = 'zset'}) do
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then return reply('foreign', {key = key, kind = found}) end
end

local meta, fields = {}, redis.call('HGETALL', META)
for i = 1, #fields, 2 do meta[fields[i]] = fields[i + 1] end

if meta.format and tonumber(meta.format) ~= input.format then
  return reply('format', {format = tonumber(meta.format)})
end
if meta.state == 'resetting' then return reply('resetting') end

-- A run whose last worker was killed after the last page is as complete as one that was closed.
-- With several shards the counts of one say nothing.
local complete = meta.state == 'complete'
  or (meta.state == 'open' and meta.seeded == '1' and meta['config:shards'] == '1'
      and live_workers() == 0 and all_finished())
local begin
if input.again then
  if meta.run ~= input.run then return reply('lost') end
  begin = false
elseif input.follow then
  begin = meta.run ~= input.run
else
  begin = not meta.run or complete
end

if not input.adopt then
  local differences, differ = {}, false
  for name, given in pairs(input.config) do
    local stored = meta['config:' .. name]
    -- The backend is what the run was begun with; a producer may have begun it without knowing
    -- the spider.
    local free_to_differ = name == 'backend'
      or (name == 'spider' and (stored == '' or given == ''))
    if stored and stored ~= given and not free_to_differ then
      differences[name] = {stored, given}
      differ = true
    end
  end
  if differ and not (begin and not input.keep_seen) then
    return reply('differs', {differences = differences})
  end
end

if begin then
  local generation = tonumber(meta.generation or 0)
  if input.keep_seen and generation > 0 then
    input.config.backend = meta['config:backend']
  else
    if generation > 0 then
      redis.call('RPUSH', TRASH, meta['config:backend'] .. ' ' .. integer(generation))
    end
    generation = generation + 1
  end
  if meta.run and redis.call('EXISTS', seen_base(meta.run .. '.starts')) == 1 then
    redis.call('RPUSH', TRASH, 'exact ' .. meta.run .. '.starts')
  end
  for _, worker in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do
    redis.call('DEL', worker_key(worker), leases_of(worker))
    return_tokens(worker)
  end
  redis.call('DEL', META, COUNTS, WORKERS, BUSY, DEAD, LETTERS)
  redis.call('UNLINK', ROBOTS, ROBOTS_UNTIL, seen_base('recent:0'), seen_base('recent:1'))
  redis.call('HSET', META, 'format', input.format, 'run', input.run, 'state', 'open',
    'generation', integer(generation), 'began', integer(NOW))
  for _, name in ipairs({'limited', 'throttle'}) do
    if meta[name] then redis.call('HSET', META, name, meta[name]) end
  end
  if input.keep then
    for name, value in pairs(meta) do
      if string.sub(name, 1, 7) == 'config:' then redis.call('HSET', META, name, value) end
    end
  end
end
if begin or not input.adopt then
  for name, value in pairs(input.config) do
    if (begin and not (input.keep and meta['config:' .. name]))
        or (name == 'spider' and value ~= '') then
      redis.call('HSET', META, 'config:' .. name, value)
    end
  end
  redis.call('HSET', META, 'order', redis.call('HGET', META, 'config:order'))
end

if input.limits then
  redis.call('DEL', LIMITS)
  for pattern, text in pairs(input.limits) do redis.call('HSET', LIMITS, pattern, text) end
  if input.throttle ~= '' then redis.call('HSET', META, 'throttle', input.throttle)
  else redis.call('HDEL', META, 'throttle') end
  -- Stays: slots may be parked, or a person may have said something about them.
  if next(input.limits) or input.throttle ~= '' then redis.call('HSET', META, 'limited', 1) end
end

-- Who starts a crawl again wants slots that were set aside tried again.
if live_workers() == 0 then
  redis.call('HDEL', META, 'stuck')
  if redis.call('ZCARD', ASIDE) > 0 then
    redis.call('HSET', META, 'retry', integer(NOW))
    retry_aside(integer(NOW))
  end
end

-- Whoever comes back or follows may find that others have completed the run meanwhile.
redis.call('HSET', META, 'state', 'open')

if input.worker ~= '' then
  redis.call('ZADD', WORKERS, NOW + input.ttl, input.worker)
  redis.call('HSET', worker_key(input.worker), 'seq', 0, 'ttl', input.ttl,
    'since', integer(NOW), unpack(input.info))
  local was = redis.call('HGET', worker_key(input.worker), 'starting') == '1'
  set_flag(input.worker, 'starting', was, input.starting)
  flush_counts()
end

local config = {}
fields = redis.call('HGETALL', META)
for i = 1, #fields, 2 do
  local name = string.match(fields[i], '^config:(.*)$')
  if name then config[name] = fields[i + 1] end
end
return reply('ok', {run = redis.call('HGET', META, 'run'), began = begin, config = config,
  generation = tonumber(redis.call('HGET', META, 'generation')),
  trash = redis.call('LLEN', TRASH)})
