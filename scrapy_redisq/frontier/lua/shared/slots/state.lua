-- Slots with limits, or in trouble: their state. shared/slots/turns lets workers start requests of
-- them by it, shared/slots/backoff parks them.
--
-- A limit is kept exactly by the worker that starts requests, not here: for up to TURN one worker
-- at a time has the turn of a slot with a delay or a rate, and keeps them by its own clock. It
-- reports its last start; when it does not, the worst is assumed. It keeps the turn for longer as
-- long as no other worker holds requests of the slot. Of a slot with a concurrency each worker has
-- tokens, one for each download, and all of them together are never more than allowed.
--
-- The delay may be made longer by robots.txt and by latencies (AutoThrottle). After a failure a slot
-- is parked for a while; then one request of it is downloaded at a time, until a request that was
-- begun after the failure succeeds.
--
-- The rate is kept by the generic cell rate algorithm, a leaky bucket whose whole state is `tat`
-- (ITU-T I.371, appendix): a start at t needs t >= tat - (burst - 1) * interval, and then
-- tat = max(t, tat) + interval.
--
-- Include  shared/slots/limits

-- Microseconds: of a turn, and before its next start that a slot may be claimed.
local TURN, EARLY = 1000000, 250000
-- After so long a paused slot is looked at again (us).
local HOUR = 3600000000
-- So long at most a slot waits that other crawls share: what they do moves no slot of this one (us).
local MINUTE = 60000000
-- Milliseconds after which a slot is forgotten of which nobody is heard: SLOT_TTL in config.py.
local FORGOTTEN = 3600000

local TIMES = {'last', 'tat', 'ends', 'wanted', 'place', 'short', 'parked', 'failed', 'told'}

local TEXTS = {robots_by = true, owner = true, own = true, line = true}

local FIELDS = {
  'last',     -- when a request was last started
  'tat',      -- theoretical arrival time of the rate
  'ends',     -- end of the turn
  'wanted',   -- until when it counts that another worker waits for the turn
  'line',     -- crawls that share the slot, by their hash tags: see shared/slots/turns.lua
  'place',    -- until when it is for the first of them
  'served',   -- 1: this one has got something since it is the first
  'short',    -- until when it counts that it has too few tokens
  'over',     -- 1: the owner was told that its turn is over, and has yet to tell its last start
  'out',      -- tokens that workers have
  'parked',   -- nothing is started before it
  'fails',    -- failures in a row
  'failed',   -- when the last one was counted
  'told',     -- when other workers were last told of a failure
  'status',   -- HTTP status of the last answer, 0: there was none; negative: that of robots.txt, by
              -- which nothing is allowed, -1: it cannot be had
  'robots',   -- delay that robots.txt asks for
  'robots_by', -- run and host that it is from
  'throttle', -- delay that comes from latencies
  'held',     -- 1: nothing is started before a person says so
  'owner',    -- worker that has the turn
  'own',      -- a limit that a person gave, in the place of those in `limits`
}

-- AutoThrottle, if it is on: target concurrency, delay of a slot not yet known, shortest and
-- longest delay (us).
local throttle
local function read_throttle(text)
  local target, first, least, most = string.match(text or '', '^(%S+) (%d+) (%d+) (%d+)$')
  if not target then return end
  throttle = {target = tonumber(target), first = tonumber(first), least = tonumber(least),
    most = tonumber(most)}
end

local slots = {}

-- -> the state of a slot: FIELDS, and its `limit`
local function slot_of(slot)
  local state = slots[slot]
  if not state then
    state = {}
    local values = redis.call('HMGET', slot_key(slot), unpack(FIELDS))
    for i, name in ipairs(FIELDS) do
      if TEXTS[name] then state[name] = values[i] or ''
      else state[name] = number_of(values[i]) end
    end
    -- After a reset the server's clock may have gone back: then the slot's times mean nothing.
    local is_ahead = math.max(state.last, state.failed, state.told) > NOW + MINUTE
    for _, name in ipairs(is_ahead and TIMES or {}) do state[name] = 0 end
    state.last = math.min(state.last, NOW)
    set_limit(slot, state, state.own)
    slots[slot] = state
  end
  return state
end

local function throttled(state)
  if not throttle then return 0 end
  return state.throttle > 0 and state.throttle or throttle.first
end

-- By the latency of a download (us; -1: it is not of interest), as Scrapy's AutoThrottle does.
local function set_throttle(state, latency)
  if not throttle or latency < 0 then return end
  local target, was = latency / throttle.target, throttled(state)
  local delay = math.max(target, (was + target) / 2)
  delay = math.min(math.max(delay, throttle.least), throttle.most)
  if state.status == 200 or delay > was then was = delay end
  state.throttle = math.max(1, math.floor(was))
end

local function delay_of(state)
  return math.max(state.limit.delay, state.robots, throttled(state))
end

-- How many downloads may be in progress at a time, 0: any number.
local function concurrency_of(state) return state.fails > 0 and 1 or state.limit.concurrency end

local function is_exclusive(state) return delay_of(state) > 0 or state.limit.interval > 0 end

local function is_limited(state)
  return is_exclusive(state) or concurrency_of(state) > 0 or state.parked > NOW
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
    -- Rules of a person stay, and tokens do until they are back.
    if state.own == '' and state.held == 0 and state.out == 0 then
      local idle = math.max(first_start(state), state.ends) - NOW
      redis.call('PEXPIRE', key, FORGOTTEN + math.ceil(idle / 1000))
    end
  end
end

-- Slots that wait are looked at again then; by default when a request of theirs may be claimed.
local function look_again(slot, at)
  at = at or first_start(slot_of(slot)) - EARLY
  redis.call('ZADD', READY, 'XX', integer(SHARED and math.min(at, NOW + MINUTE) or at), slot)
end

-- Workers that have requests of the slot, also those of other crawls that share it, are told to
-- start none for some time (us), or with 0 to ask again. A user without the right to publish gets
-- no error for it.
local function announce(slot, time)
  redis.pcall('PUBLISH', SLOTS .. 'wake', integer(time) .. ' ' .. slot)
end

-- Tokens of slots with a concurrency, and how many each worker has.

local function tokens_of(worker, slot)
  return number_of(redis.call('HGET', tokens_key(worker), slot))
end

local function set_tokens(worker, slot, state, n)
  local had = tokens_of(worker, slot)
  if n == had then return end
  if n < had then look_again(slot) end -- first: if its key is damaged, no token is gone by that
  if n == 0 then redis.call('HDEL', tokens_key(worker), slot)
  else redis.call('HSET', tokens_key(worker), slot, n) end
  state.out = math.max(0, state.out + n - had)
end

-- A worker is gone, and so are its downloads.
local function return_tokens(worker)
  for slot, n in pairs(hash_of(tokens_key(worker))) do
    local state = slot_of(slot)
    state.out = math.max(0, state.out - number_of(n))
    save_slot(slot, state)
    look_again(slot, NOW)
  end
  redis.call('DEL', tokens_key(worker))
  if SHARED then redis.call('ZREM', ALL_WORKERS, worker) end
end

-- How many requests of a slot are queued: at least, if it has requests of more than `most`
-- priorities.
local function queued(slot, most)
  local priorities = redis.call('ZRANGE', levels_of(slot), 0, most - 1)
  local sum = redis.call('ZCARD', levels_of(slot)) - #priorities
  for _, priority in ipairs(priorities) do
    sum = sum + redis.call('LLEN', queue_of(slot, priority))
  end
  return sum
end
