-- Takes lines out of a feed, a key that any client of Redis fills. Until they are pushed they are
-- aside: of a stream pending in the consumer group redisq:NAME, else a batch in a key beside it.
-- Its keys are {FEED}:redisq:NAME:..., in the hash slot of the feed, not those of a shard: batches,
-- a sorted set (batch -> when another worker may take it up, us).
--
-- Input    feed (its key), name (of the frontier), id (32 characters, of a new batch), most (lines;
--          0: none), ttl (us after which another worker may take the same lines up again), done
--          (false, or what is pushed: a batch, or an array of ids of a stream); or count (true),
--          which changes nothing
-- Reply    of count how many lines wait, -1 if the key is of no type that is read; else
--          {type of the feed, how much is aside, batch}, the batch being ID, then LENGTH:LINE for
--          each line, or ''; of a stream {type, how much is aside, {id, {field, value...}}...}
-- Cost     O(most), about 4 MB and the last line; of a set `most` lines, whatever their size
-- Retry    takes other lines: those whose reply was lost are taken up again when `ttl` is over
-- Memory   Redis refuses the copy when it is full, and nothing is taken out

local BATCHES, FEED = PREFIX .. 'batches', input.feed
local kind = redis.call('TYPE', FEED).ok

local GROUP, CONSUMER = 'redisq:' .. input.name, 'worker'

-- The number of entries of a stream that this crawl has not done with.
local function left_in_stream()
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', FEED)) do
    local told = {}
    for i = 1, #group, 2 do told[group[i]] = group[i + 1] end
    if told.name == GROUP then
      -- Redis 6.2 does not say how many are left, nor a later one if some were deleted: 0 or 1.
      local left = '(' .. told['last-delivered-id']
      return told.pending + (told.lag or #redis.call('XRANGE', FEED, left, '+', 'COUNT', 1))
    end
  end
  return redis.call('XLEN', FEED)
end

-- Lines that wait, a batch that is aside being one.
local function waiting()
  local aside = redis.call('ZCARD', BATCHES)
  if kind == 'list' then return aside + redis.call('LLEN', FEED) end
  if kind == 'set' then return aside + redis.call('SCARD', FEED) end
  if kind == 'zset' then return aside + redis.call('ZCARD', FEED) end
  if kind == 'stream' then return aside + left_in_stream() end
  return kind == 'none' and aside or -1
end
if input.count then return waiting() end

local function from_stream()
  local has_group = false
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', FEED)) do
    has_group = has_group or group[2] == GROUP
  end
  if not has_group then redis.call('XGROUP', 'CREATE', FEED, GROUP, '0') end
  if type(input.done) == 'table' then redis.call('XACK', FEED, GROUP, unpack(input.done)) end
  local reply, bytes = {kind, 0}, 0
  local function take(entry)
    reply[#reply + 1] = entry
    for _, text in ipairs(entry[2]) do bytes = bytes + #text end
  end
  local pending = input.most > 0 and redis.call('XPENDING', FEED, GROUP, 'IDLE',
    integer(input.ttl / 1000), '-', '+', input.most) or {}
  for _, one in ipairs(pending) do
    if bytes >= MOST_BYTES then break end
    local entry = redis.call('XCLAIM', FEED, GROUP, CONSUMER, 0, one[1])[1]
    if entry and entry[2] then
      take(entry)
    else  -- trimmed; Redis 6.2 keeps it pending, in front of others
      redis.call('XACK', FEED, GROUP, one[1])
    end
  end
  while #reply - 2 < input.most and bytes < MOST_BYTES do
    local found = redis.call('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', 1, 'STREAMS', FEED, '>')
    if not found then break end
    take(found[1][2][1])
  end
  reply[2] = redis.call('XPENDING', FEED, GROUP)[1]
  return reply
end
-- The key may have been of another type when these were taken.
if type(input.done) == 'string' then redis.call('ZREM', BATCHES, input.done) end
if kind == 'stream' then return from_stream() end

-- How a type is read: the lines in their order, the first `most` of them; and how they are removed.
local READ, REMOVE = {}, {}
function READ.list(n) return redis.call('LINDEX', FEED, n - 1) end
function REMOVE.list(lines) redis.call('LTRIM', FEED, #lines, -1) end
function READ.zset(n) return redis.call('ZREVRANGE', FEED, n - 1, n - 1)[1] end
function REMOVE.zset(lines) redis.call('ZREM', FEED, unpack(lines)) end
local members
function READ.set(n)
  members = members or redis.call('SRANDMEMBER', FEED, input.most)
  return members[n]
end
function REMOVE.set(lines) redis.call('SREM', FEED, unpack(lines)) end

local batch = ''
if input.most > 0 then
  batch = redis.call('ZRANGEBYSCORE', BATCHES, '-inf', NOW, 'LIMIT', 0, 1)[1]
  -- Or one of which the time is further ahead than it can be: the clock went back.
  local too_far = '(' .. integer(NOW + input.ttl)
  batch = batch or redis.call('ZRANGEBYSCORE', BATCHES, too_far, '+inf', 'LIMIT', 0, 1)[1] or ''
  local lines, bytes = {}, 0
  while batch == '' and READ[kind] and #lines < input.most and bytes < MOST_BYTES do
    local line = READ[kind](#lines + 1)
    if not line then break end
    lines[#lines + 1], bytes = line, bytes + #line
  end
  if #lines > 0 then
    local parts = {input.id}
    for i, line in ipairs(lines) do parts[i + 1] = #line .. ':' .. line end
    batch = table.concat(parts)
  end
  -- Copied before anything is removed: a script that fails half-way loses nothing.
  if batch ~= '' then redis.call('ZADD', BATCHES, NOW + input.ttl, batch) end
  if #lines > 0 then REMOVE[kind](lines) end
end
return {kind, redis.call('ZCARD', BATCHES), batch}
