-- Why the requests of a shard wait, for people: little or nothing happens.
--
-- Input    most (slots that are looked at), part (0 at first: which portion of these)
-- Reply    msgpack map: slots (that have requests), due (that might start now), busy (with leases),
--          next (us until the first start that time alone keeps back, -1: there is none), delayed
--          (how many, us until the first and the last is due), aside and paused ({slots that are,
--          how many were looked at, how many of these have requests}), stuck (us since nothing but
--          slots that are set aside is left, -1: something is), keep_alive, waiting and starting
--          (workers), parts (portions to be asked for), looked (slots with requests that were
--          looked at, evenly spread over all), kinds {kind = {how many of them, by what}}
--             due          nothing keeps it {busy = how many of these workers have requests of}
--             delay        by limit, rate, robots, throttle or back-off {cause = how many}
--             concurrency  {downloads that are allowed at a time, of all of them}
--             parked       by status of the last answer, 0: none {status = how many}
--             aside, paused
--          and starts (a minute, that delays and rates of those that were looked at allow together;
--          -1: one of them has neither), oldest (us for which the first slot has been due, -1: none
--          is), room ({downloads that those which were looked at have requests for, and may have in
--          progress at a time, leases of them}; parked, aside and paused ones have no room)
-- Cost     about 0.5 ms, however many slots there are: looks at 20 of them; reads only
-- Include  shared/slots/state

local PART = 20
local meta = fields_of(META, 'stuck', 'keep_alive', 'throttle', 'corrupt')
if meta.corrupt then corrupt(meta.corrupt) end -- it may lie where nothing here looks
local counts = fields_of(COUNTS, 'waiting', 'starting')
read_throttle(meta.throttle)

-- How many of the slots in a set have requests, of those that are looked at.
local function with_requests(key)
  local members, n = redis.call('ZRANGE', key, 0, PART - 1), 0
  for _, slot in ipairs(members) do
    if redis.call('ZSCORE', READY, slot) then n = n + 1 end
  end
  return {redis.call('ZCARD', key), #members, n}
end

-- What keeps a slot longest between two starts, and for how long.
local function longest_of(state)
  local cause, longest = 'rate', state.limit.interval
  for name, pause in pairs({limit = state.limit.delay, robots = state.robots,
      throttle = throttled(state)}) do
    if pause > longest then cause, longest = name, pause end
  end
  return cause, longest
end

-- -> kind, and by what
local function kind_of(slot, state)
  if state.held == 1 then return 'paused', '' end
  if redis.call('ZSCORE', ASIDE, slot) then return 'aside', '' end
  if state.parked > NOW then return 'parked', integer(state.status) end
  local has_turn = state.owner ~= '' and state.ends > NOW
  if is_exclusive(state) and (has_turn or first_start(state) > NOW) then
    return 'delay', (longest_of(state))
  end
  local limit = concurrency_of(state)
  if limit > 0 and state.out >= limit then
    if state.fails > 0 then return 'delay', 'back-off' end
    return 'concurrency', ''
  end
  return 'due', redis.call('HEXISTS', BUSY, slot) == 1 and 'busy' or ''
end

-- Downloads that a slot has requests for and may have in progress at a time, and its leases. With a
-- delay or a rate it is one: one worker at a time starts them.
local function room_of(slot, state)
  local out = number_of(redis.call('HGET', BUSY, slot))
  local most = is_exclusive(state) and 1 or concurrency_of(state)
  if most == 1 then return 1, out end -- it has a request
  local wanted = queued(slot, 4) + out
  return most > 0 and math.min(most, wanted) or wanted, out
end

local total = redis.call('ZCARD', READY)
local most = math.min(total, input.most)
local parts = math.max(1, math.ceil(most / PART))
local kinds, starts, looked, room, held = {}, 0, 0, 0, 0
for i = input.part + 1, most, parts do
  looked = looked + 1
  local rank = math.floor((i - 0.5) * total / most)
  local slot = redis.call('ZRANGE', READY, rank, rank)[1]
  local state = slot_of(slot)
  local kind, by = kind_of(slot, state)
  local told = kinds[kind] or {0, {}}
  kinds[kind] = told
  told[1] = told[1] + 1
  if kind == 'concurrency' then told[2] = {(told[2][1] or 0) + state.limit.concurrency}
  elseif by ~= '' then told[2][by] = (told[2][by] or 0) + 1 end
  if kind ~= 'aside' and kind ~= 'paused' then
    local _, longest = longest_of(state)
    starts = starts >= 0 and longest > 0 and starts + 60000000 / longest or -1
    if kind ~= 'parked' then
      local downloads, out = room_of(slot, state)
      room, held = room + downloads, held + out
    end
  end
end

local nearest = -1
local later = redis.call('ZRANGEBYSCORE', READY, '(' .. integer(NOW), '+inf', 'LIMIT', 0, PART)
for _, slot in ipairs(later) do
  local state = slot_of(slot)
  local limit = concurrency_of(state)
  if state.held ~= 1 and not (limit > 0 and state.out >= limit) then
    local left = math.max(0, first_start(state) - NOW)
    nearest = nearest < 0 and left or math.min(nearest, left)
  end
end

-- When the first member of a set is due, or the last one; nil if it has none.
local function due_at(key, rank)
  return tonumber(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2])
end
local function due_in(rank) return math.max(0, (due_at(DELAYED, rank) or NOW) - NOW) end
-- us since then, -1 if that is not in the past
local function us_since(time) return time and time <= NOW and NOW - time or -1 end

return cmsgpack.pack({slots = total, due = redis.call('ZCOUNT', READY, '-inf', NOW),
  busy = redis.call('HLEN', BUSY), next = nearest,
  delayed = {redis.call('ZCARD', DELAYED), due_in(0), due_in(-1)},
  aside = with_requests(ASIDE), paused = with_requests(PAUSED),
  stuck = us_since(tonumber(meta.stuck or '')), keep_alive = meta.keep_alive and 1 or 0,
  waiting = number_of(counts.waiting), starting = number_of(counts.starting),
  parts = parts, looked = looked, kinds = kinds, starts = starts, room = {room, held},
  oldest = us_since(due_at(READY, 0))})
