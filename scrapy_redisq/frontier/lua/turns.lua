-- Slots with limits, or in trouble: who may start requests of them, and when.
--
-- A limit is kept exactly by whoever starts requests, not here: for up to TURN one worker at a time
-- has the turn of a slot with a delay or a rate, and keeps them by its own clock. It reports its
-- last start; when it does not, the worst is assumed. Of a slot with a concurrency each worker has
-- tokens, one for each download, and all of them together are never more than allowed.
--
-- A limit is "DELAY INTERVAL BURST CONCURRENCY", times in us, 0: none. A rate is an interval and a
-- burst. The pattern is a slot, *.DOMAIN, or * for all. The delay may be made longer by robots.txt,
-- by latencies (AutoThrottle), and by failures, after which a slot is also parked for a while.
--
-- The rate is kept by the generic cell rate algorithm, a leaky bucket whose whole state is `tat`
-- (ITU-T I.371, appendix): a start at t needs t >= tat - (burst - 1) * interval, and then
-- tat = max(t, tat) + interval.

-- Microseconds: of a turn, and before its next start that a slot may be claimed.
local TURN, EARLY = 1000000, 250000
-- The first pause after a failure, and the shortest that is not forgotten (us). Short, because many
-- sites answer 503 now and then; in a row they double.
local FIRST_PAUSE, LAST_PAUSE = 50000, 50000
-- The longest pause between two tries of a slot that is set aside, an hour (us).
local PROBE = 3600000000
-- Without a failure for so long a slot is in trouble no longer, an hour (us).
local CALM = 3600000000
-- Of one slot's failures others are told once in so long (us). Who has been told asks about the slot
-- in each exchange for a while.
local TELL = 1000000
-- Stands for what is left of the turn of a slot without limits.
local FREE = -2
-- Milliseconds after which a slot that a dead worker left is forgotten.
local FORGOTTEN = 3600000

local TEXTS = {robots_by = true, owner = true, own = true}
local FIELDS = {
  'last',     -- when a request was last started
  'tat',      -- theoretical arrival time of the rate
  'ends',     -- end of the turn
  'out',      -- tokens that workers have
  'parked',   -- nothing is started before it
  'pause',    -- delay because of failures; halved by each success
  'fails',    -- failures in a row
  'failed',   -- when the last one was counted
  'trouble',  -- since when there has been one at least each CALM
  'told',     -- when others were last told of one
  'status',   -- HTTP status of the last answer, 0: there was none
  'robots',   -- delay that robots.txt asks for
  'robots_by', -- run and host that it is from
  'throttle', -- delay that comes from latencies
  'latency',  -- the last of them
  'held',     -- 1: nothing is started before a person says so
  'owner',    -- worker that has the turn
  'own',      -- a limit that a person gave, in the place of those in `limits`
}
local LIMITS, ASIDE = PREFIX .. 'limits', PREFIX .. 'aside'
local PAUSED, RULED = PREFIX .. 'paused', PREFIX .. 'ruled'
local function slot_key(slot) return PREFIX .. 'slot:' .. slot end
local function tokens_key(worker) return PREFIX .. 'tokens:' .. worker end

-- The same as foreign_key(), also of what is kept of slots.
local function foreign_key_of_slots()
  return foreign_key({'HLEN', LIMITS, 'ZCARD', ASIDE, 'ZCARD', PAUSED, 'ZCARD', RULED})
end

-- AutoThrottle, if it is on: target concurrency, delay of a slot not yet known, shortest and
-- longest delay (us).
local throttle
local function read_throttle(text)
  if not text then return end
  local target, first, least, most = string.match(text, '^(%S+) (%d+) (%d+) (%d+)$')
  if number_of(target) <= 0 then return end -- somebody has bent it
  throttle = {target = number_of(target), first = number_of(first), least = number_of(least),
    most = number_of(most)}
end

local any_limits
local function limit_of(slot, own)
  local text = own
  if any_limits == nil then any_limits = redis.call('EXISTS', LIMITS) == 1 end
  if text == '' and any_limits then
    local patterns, domain = {slot}, slot
    while string.find(domain, '.', 1, true) do
      domain = string.match(domain, '%.(.*)$')
      patterns[#patterns + 1] = '*.' .. domain
    end
    patterns[#patterns + 1] = '*'
    for _, found in ipairs(redis.call('HMGET', LIMITS, unpack(patterns))) do
      if found then
        text = found
        break
      end
    end
  end
  local delay, interval, burst, concurrency = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
  return {delay = number_of(delay), interval = number_of(interval),
    burst = math.max(1, number_of(burst)), concurrency = number_of(concurrency)}
end

local slots = {}

-- -> what is known of a slot: FIELDS, and its `limit`
local function slot_of(slot)
  local state = slots[slot]
  if not state then
    state = {}
    -- Another key in its place is one that says nothing, and is replaced.
    local values = redis.pcall('HMGET', slot_key(slot), unpack(FIELDS))
    for i, name in ipairs(FIELDS) do
      if TEXTS[name] then
        state[name] = values[i] or ''
      else
        local number = number_of(values[i])
        state[name] = number < FAR and number or 0 -- somebody has bent it
      end
    end
    state.limit = limit_of(slot, state.own)
    slots[slot] = state
  end
  return state
end

local function throttled(state)
  if not throttle then return 0 end
  return state.throttle > 0 and state.throttle or throttle.first
end
local function delay_of(state)
  return math.max(state.limit.delay, state.pause, state.robots, throttled(state))
end

local function is_exclusive(state) return delay_of(state) > 0 or state.limit.interval > 0 end

local function is_limited(state)
  return is_exclusive(state) or state.limit.concurrency > 0 or state.parked > NOW
    or state.held == 1
end

local function next_by_delay(state) return state.last > 0 and state.last + delay_of(state) or 0 end

local function first_start(state)
  return math.max(NOW, next_by_delay(state), state.parked,
    state.tat - (state.limit.burst - 1) * state.limit.interval)
end

local function save_slot(slot, state)
  local values = {}
  for _, name in ipairs(FIELDS) do
    local value = state[name]
    if value ~= 0 and value ~= '' then
      values[#values + 1] = name
      values[#values + 1] = type(value) == 'number' and integer(value) or value
    end
  end
  local key = slot_key(slot)
  redis.call('DEL', key)
  if #values > 0 then
    redis.call('HSET', key, unpack(values))
    -- What a person said stays, and tokens do until they are back.
    if state.own == '' and state.held == 0 and state.out == 0 then
      local idle = math.max(first_start(state), state.ends) - NOW
      redis.call('PEXPIRE', key, (input.slot_ttl or FORGOTTEN) + math.ceil(idle / 1000))
    end
  end
end

local function look_again(slot, at) redis.call('ZADD', READY, 'XX', integer(at), slot) end

-- Workers that have requests of the slot are told to start none for some time (us), or with 0 to
-- ask what they may do. A user without the right to publish gets no error for it.
local function announce(slot, time)
  redis.pcall('PUBLISH', WAKE_CHANNEL, integer(time) .. ' ' .. slot)
end

-- Keeps what a person has said about a slot, and has all workers look at it at once.
local function rule(slot, state)
  -- First writes that remove: works at maxmemory too.
  redis.call('ZREM', RULED, slot)
  redis.call('ZREM', PAUSED, slot)
  if state.own ~= '' then redis.call('ZADD', RULED, NOW, slot) end
  if state.held == 1 then redis.call('ZADD', PAUSED, NOW, slot) end
  redis.call('HSET', META, 'limited', 1)
  -- The turn of a worker that is gone may have been meant for long after this.
  state.ends = math.min(state.ends, first_start(state) + TURN)
  save_slot(slot, state)
  look_again(slot, state.held == 1 and NOW + PROBE or first_start(state) - EARLY)
  announce(slot, 0)
  wake(flush_counts())
end

-- Forgets what is known of a slot, but for what a person has said.
local function forget_slot(slot)
  local own, held = unpack(redis.pcall('HMGET', slot_key(slot), 'own', 'held'))
  redis.call('DEL', slot_key(slot))
  if own then redis.call('HSET', slot_key(slot), 'own', own) end
  if held then redis.call('HSET', slot_key(slot), 'held', held) end
end

local function tokens_of(worker, slot)
  return math.max(0, number_of(redis.call('HGET', tokens_key(worker), slot)))
end

-- Sets how many tokens a worker has of a slot.
local function set_tokens(worker, slot, state, n)
  local had = tokens_of(worker, slot)
  if n == had then return end
  if n == 0 then redis.call('HDEL', tokens_key(worker), slot)
  else redis.call('HSET', tokens_key(worker), slot, n) end
  state.out = math.max(0, state.out + n - had)
  if n < had then look_again(slot, first_start(state) - EARLY) end
end

-- Tokens are counted, and whoever may write here can bend the count. Of those who are refused one
-- counts what the workers have, as often as pays: each time by a worker that is alone.
local function recount(slot, state)
  if NOW % math.max(1, redis.call('ZCARD', WORKERS)) >= 1 then return end
  local out = 0
  for _, worker in ipairs(redis.call('ZRANGE', WORKERS, 0, -1)) do
    out = out + (tonumber(redis.pcall('HGET', tokens_key(worker), slot)) or 0)
  end
  state.out = out
end

-- A worker tells what it did with its turn. `item`: slot, us since its last start (-1: none), us
-- until its tat (may be negative), tokens that it needs, 1 if it has no more use for it.
local function report_turn(worker, item)
  local slot, state = item[1], slot_of(item[1])
  if not is_limited(state) and state.out == 0 then return end
  if item[2] >= 0 then state.last = math.max(state.last, NOW - item[2]) end
  state.tat = math.max(state.tat, NOW + item[3])
  if state.limit.concurrency > 0 then set_tokens(worker, slot, state, item[4])
  elseif state.out > 0 then set_tokens(worker, slot, state, 0) end
  if item[5] == 1 and state.owner == worker then
    state.owner = ''
    look_again(slot, first_start(state) - EARLY)
  end
  save_slot(slot, state)
end

-- Whether a slot goes on failing now and then, for longer than `terms` allow.
local function is_worn(state, terms)
  return terms[3] > 0 and state.trouble > 0 and state.failed - state.trouble >= terms[3]
end

-- A slot that has not failed for long is not aside because it once did now and then.
local function calm_down(slot, state)
  if state.trouble == 0 or NOW - state.failed < CALM or state.fails > 0 then return end
  state.trouble = 0
  redis.call('ZREM', ASIDE, slot)
  save_slot(slot, state)
end

-- Slots that were set aside before `since` are tried again, a bounded number at a time; `retry` in
-- meta is there as long as there are more.
local function retry_aside(since)
  local aside = redis.call('ZRANGEBYSCORE', ASIDE, '-inf', since, 'LIMIT', 0, 100)
  for _, slot in ipairs(aside) do
    redis.call('ZREM', ASIDE, slot)
    redis.pcall('HDEL', slot_key(slot), 'parked', 'pause', 'fails', 'trouble')
    look_again(slot, NOW)
  end
  if #aside < 100 then redis.call('HDEL', META, 'retry') end
end

-- What a request did to its slot. `item`: slot, HTTP status (0: no answer), us since it was begun,
-- us that the host asked to be left alone (-1: it did not), 1 for a failure, -1 for a success, else
-- 0, a random number of 0 to 1000, latency in us (-1: not of interest).
-- `terms`: longest pause (us), failures after which a slot is set aside (0: never), us after which
-- one is that fails now and then (0: never).
local function report_outcome(item, terms)
  local slot, state, verdict, latency = item[1], slot_of(item[1]), item[5], item[7]
  state.status = item[2]
  if throttle and latency >= 0 then
    -- As Scrapy's AutoThrottle does, for the slot of the whole fleet.
    local target, was = latency / throttle.target, throttled(state)
    local delay = math.max(target, (was + target) / 2)
    delay = math.min(math.max(delay, throttle.least), throttle.most)
    if state.status == 200 or delay > was then was = delay end
    state.throttle, state.latency = math.max(1, math.floor(was)), latency
  end
  if verdict < 0 and state.fails + state.pause > 0 then
    if not is_worn(state, terms) and redis.call('ZREM', ASIDE, slot) == 1 then
      redis.call('HDEL', META, 'stuck')
    end
    local pause = math.min(terms[1], math.floor(state.pause / 2))
    state.fails, state.pause = 0, pause >= LAST_PAUSE and pause or 0
    look_again(slot, first_start(state) - EARLY)
  elseif verdict > 0 then
    local asked, now = item[4], NOW
    -- Others know that it is parked, or have no turn.
    local others_may_start = state.parked <= NOW and not (is_exclusive(state)
      and (state.owner == '' or state.owner == input.worker))
    -- What was begun before the last failure was known says nothing new.
    if NOW - item[3] >= state.failed then
      if state.trouble == 0 or NOW - state.failed >= CALM then state.trouble = NOW end
      state.fails, state.failed = state.fails + 1, NOW
      local longest, first = terms[1], math.max(FIRST_PAUSE, state.limit.delay, state.robots)
      local aside = (is_worn(state, terms) or (terms[2] > 0 and state.fails >= terms[2]))
        and state.held == 0
      if aside then
        longest = PROBE
        redis.call('ZADD', ASIDE, 'NX', NOW, slot)
      end
      local grown = state.pause * ((asked < 0 or aside) and 2 or 1)
      state.pause = math.max(math.min(longest, math.max(first, grown)), state.pause)
      if asked < 0 or aside then
        now = NOW + math.floor(state.pause * (0.5 + item[6] / 2000))
      end
    end
    state.parked = math.max(state.parked, now, NOW + asked)
    state.owner = ''
    look_again(slot, state.parked - EARLY)
    redis.call('HSET', META, 'limited', 1)
    if others_may_start and NOW - state.told >= TELL then
      state.told = NOW
      announce(slot, state.parked - NOW)
    end
  end
  save_slot(slot, state)
end

-- Gives a worker the turn and tokens of a slot, if they are to be had.
-- -> how many requests it may claim at most, what the worker is told of it: slot, us that are left
-- of the turn (-1: it needs none, FREE: the slot has no limits), 1 if the turn is new or -1 if it
-- was refused, us until the next start by the delay, us until tat, delay, interval, burst, tokens
-- (-1: it needs none), us for which the slot is parked, 1 if it is in trouble
-- With 0 the slot is moved to when it is worth asking again.
local function give_turn(worker, slot, most)
  local state, new = slot_of(slot), false
  calm_down(slot, state)
  if not is_limited(state) then return most end
  local limit, delay, start = state.limit, delay_of(state), NOW
  if state.held == 1 then
    look_again(slot, NOW + PROBE)
    return 0
  end
  if state.parked > NOW + EARLY then
    look_again(slot, state.parked - EARLY)
    return 0
  end
  local exclusive = is_exclusive(state)
  if exclusive then
    if state.owner ~= '' and state.owner ~= worker then
      if state.ends > NOW then
        look_again(slot, state.ends)
        return 0
      end
      -- It never said what it did in its turn.
      state.last = math.max(state.last, state.ends)
      state.tat = math.max(state.tat, state.ends + limit.burst * limit.interval)
    end
    start = first_start(state)
    if start > NOW + EARLY and state.owner ~= worker then
      state.owner = ''
      save_slot(slot, state)
      look_again(slot, start - EARLY)
      return 0
    end
  end
  local tokens = -1
  if limit.concurrency > 0 then
    local had = tokens_of(worker, slot)
    if had == 0 and not (state.out >= 0 and state.out < limit.concurrency) then
      recount(slot, state)
    end
    local left = limit.concurrency - state.out
    -- One that has none needs one for what it holds, though it may claim nothing more.
    tokens = math.max(0, had + math.min(had == 0 and math.max(1, most) or most, left))
    if had + tokens == 0 then
      look_again(slot, NOW + TURN)
      return 0
    end
    -- A slot that is new to the worker: more would only wait in it, and keep it from other slots.
    if had == 0 then most = math.min(most, 2 * tokens) end
    -- Where the limit was lowered there are too many, and downloads that have them: they are
    -- out until the worker says that it has fewer.
    if left >= 0 then set_tokens(worker, slot, state, tokens) else most = 0 end
  end
  if exclusive then
    new = state.owner ~= worker
    state.owner, state.ends = worker, start + TURN
    if delay > 0 then most = math.min(most, 1 + math.floor(TURN / delay)) end
    if limit.interval > 0 then
      local ahead = state.ends - math.max(state.tat, start)
      most = math.min(most, math.max(1, math.floor(ahead / limit.interval) + limit.burst))
    end
  end
  save_slot(slot, state)
  return most, {slot, exclusive and state.ends - NOW or -1, new and 1 or 0,
    next_by_delay(state) - NOW, state.tat - NOW, delay, limit.interval, limit.burst, tokens,
    state.parked - NOW, state.pause > 0 and 1 or 0}
end

-- Where a limited slot that still has entries goes after a claim.
local function after_turn(slot)
  local state = slot_of(slot)
  if is_exclusive(state) then look_again(slot, state.ends)
  elseif state.limit.concurrency > 0 and state.out >= state.limit.concurrency then
    look_again(slot, NOW + TURN)
  end
end

-- What a worker has of a slot, as give_turn() tells it, without giving it anything.
local function turn_of(worker, slot)
  local state = slot_of(slot)
  local left, tokens = -1, -1
  if not is_limited(state) then left = FREE
  elseif state.held == 1 or state.parked > NOW then left = 0
  elseif is_exclusive(state) then
    left = state.owner == worker and math.max(0, state.ends - NOW) or 0
  end
  if state.limit.concurrency > 0 then
    tokens = tokens_of(worker, slot)
  end
  local parked = state.held == 1 and PROBE or state.parked - NOW
  return {slot, left, 0, next_by_delay(state) - NOW, state.tat - NOW, delay_of(state),
    state.limit.interval, state.limit.burst, tokens, parked, state.pause > 0 and 1 or 0}
end

-- A worker is gone, and so are its downloads.
local function return_tokens(worker)
  local held = redis.pcall('HGETALL', tokens_key(worker))
  redis.call('DEL', tokens_key(worker))
  for i = 1, #held, 2 do
    local slot, state = held[i], slot_of(held[i])
    state.out = math.max(0, state.out - number_of(held[i + 1]))
    save_slot(slot, state)
    look_again(slot, NOW)
  end
end

-- The status of a slot's last answer, which people are shown.
local function note_status(slot, status)
  local key = slot_key(slot)
  if type(redis.pcall('HSET', key, 'status', status)) == 'table' then return end
  if slots[slot] then slots[slot].status = status end
  local left = redis.call('PTTL', key)
  -- A slot that must not be forgotten has no time to live, and more than this one value.
  if (left == -1 and redis.call('HLEN', key) == 1) or (left >= 0 and left < input.slot_ttl) then
    redis.call('PEXPIRE', key, input.slot_ttl)
  end
end

-- Whether slots have entries or leases that are not set aside. Slots may also be set aside and have
-- neither, so that numbers say nothing.
local function any_but_aside()
  if redis.call('HLEN', BUSY) > 1000 then return true end
  for _, slots in ipairs({redis.call('ZREVRANGE', READY, 0, 999), redis.call('HKEYS', BUSY)}) do
    for _, slot in ipairs(slots) do
      if not redis.call('ZSCORE', ASIDE, slot) then return true end
    end
  end
end

-- -> seconds for which all that is left has been in slots that are set aside; -1: it is not.
-- `since` is what this keeps as `stuck` in meta. What such slots answer now and then is no reason to
-- wait for the rest of them.
local function stuck_for(counts, since)
  local aside = redis.call('ZCARD', ASIDE)
  since = since and tonumber(since)
  if aside == 0 or redis.call('EXISTS', READY) + redis.call('EXISTS', BUSY) == 0
      or counts.starting > 0 or redis.call('ZCARD', DELAYED) > 0
      or redis.call('ZCARD', READY) > aside or any_but_aside() then
    if since then redis.call('HDEL', META, 'stuck') end
    return -1
  end
  if since then return math.floor((NOW - since) / 1000000) end
  redis.call('HSET', META, 'stuck', integer(NOW))
  return 0
end
