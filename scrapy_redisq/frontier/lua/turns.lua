-- Slots with limits: who may start requests of them, and when.
--
-- A limit is kept exactly by whoever starts requests, not here: for up to TURN one worker at a time
-- has the turn of a slot with a delay or a rate, and keeps them by its own clock. It reports its
-- last start; when it does not, the worst is assumed. Of a slot with a concurrency each worker has
-- tokens, one for each download, and all of them together are never more than allowed.
--
-- A limit is "DELAY INTERVAL BURST CONCURRENCY", times in us, 0: none. A rate is an interval and a
-- burst. The pattern is a slot, *.DOMAIN, or * for all.
--
-- The rate is kept by the generic cell rate algorithm, a leaky bucket whose whole state is `tat`
-- (ITU-T I.371, appendix): a start at t needs t >= tat - (burst - 1) * interval, and then
-- tat = max(t, tat) + interval.

-- Microseconds: of a turn, and before its next start that a slot may be claimed.
local TURN, EARLY = 1000000, 250000
-- Milliseconds after which a slot that a dead worker left is forgotten.
local FORGOTTEN = 3600000

local FIELDS = {
  'next',     -- no start before it by the delay
  'tat',      -- theoretical arrival time of the rate
  'ends',     -- end of the turn
  'out',      -- tokens that workers have
  'owner',    -- worker that has the turn
}
local LIMITS = PREFIX .. 'limits'
local function slot_key(slot) return PREFIX .. 'slot:' .. slot end
local function tokens_key(worker) return PREFIX .. 'tokens:' .. worker end

local function limit_of(slot)
  local patterns, domain = {slot}, slot
  while string.find(domain, '.', 1, true) do
    domain = string.match(domain, '%.(.*)$')
    patterns[#patterns + 1] = '*.' .. domain
  end
  patterns[#patterns + 1] = '*'
  local text = ''
  for _, found in ipairs(redis.call('HMGET', LIMITS, unpack(patterns))) do
    if found then
      text = found
      break
    end
  end
  local delay, interval, burst, concurrency = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
  return {delay = tonumber(delay or 0), interval = tonumber(interval or 0),
    burst = tonumber(burst or 1), concurrency = tonumber(concurrency or 0)}
end

local slots = {}

-- -> what is known of a slot: FIELDS, and its `limit`
local function slot_of(slot)
  local state = slots[slot]
  if not state then
    state = {}
    for i, value in ipairs(redis.call('HMGET', slot_key(slot), unpack(FIELDS))) do
      local name = FIELDS[i]
      if name == 'owner' then state[name] = value or ''
      else state[name] = tonumber(value or 0) end
    end
    state.limit = limit_of(slot)
    slots[slot] = state
  end
  return state
end

local function is_exclusive(limit) return limit.delay > 0 or limit.interval > 0 end
local function is_limited(limit) return is_exclusive(limit) or limit.concurrency > 0 end

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
    if state.out == 0 then
      local idle = math.max(state.next, state.tat, state.ends, NOW) - NOW
      redis.call('PEXPIRE', key, input.slot_ttl + math.ceil(idle / 1000))
    end
  end
end

local function first_start(state)
  return math.max(NOW, state.next, state.tat - (state.limit.burst - 1) * state.limit.interval)
end

local function look_again(slot, at) redis.call('ZADD', READY, 'XX', integer(at), slot) end

-- Sets how many tokens a worker has of a slot.
local function set_tokens(worker, slot, state, n)
  local had = tonumber(redis.call('HGET', tokens_key(worker), slot) or 0)
  if n == had then return end
  if n == 0 then redis.call('HDEL', tokens_key(worker), slot)
  else redis.call('HSET', tokens_key(worker), slot, n) end
  state.out = math.max(0, state.out + n - had)
  if n < had then look_again(slot, first_start(state) - EARLY) end
end

-- A worker tells what it did with its turn. `item`: slot, us until its next start by the delay and
-- us until its tat (both may be negative), tokens that it needs, 1 if it has no more use for it.
local function report_turn(worker, item)
  local slot, state = item[1], slot_of(item[1])
  if not is_limited(state.limit) then return end
  state.next = math.max(state.next, NOW + item[2])
  state.tat = math.max(state.tat, NOW + item[3])
  if state.limit.concurrency > 0 then set_tokens(worker, slot, state, item[4]) end
  if item[5] == 1 and state.owner == worker then
    state.owner = ''
    look_again(slot, first_start(state) - EARLY)
  end
  save_slot(slot, state)
end

-- Gives a worker the turn and tokens of a slot, if they are to be had.
-- -> how many requests it may claim at most, what the worker is told of it
-- With 0 the slot is moved to when it is worth asking again.
local function give_turn(worker, slot, most)
  local state, new = slot_of(slot), false
  if not is_limited(state.limit) then return most end
  local limit, start = state.limit, NOW
  local exclusive = is_exclusive(limit)
  if exclusive then
    if state.owner ~= '' and state.owner ~= worker then
      if state.ends > NOW then
        look_again(slot, state.ends)
        return 0
      end
      -- It never said what it did in its turn.
      state.next = math.max(state.next, state.ends + limit.delay)
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
    local had = tonumber(redis.call('HGET', tokens_key(worker), slot) or 0)
    tokens = had + math.max(0, math.min(most, limit.concurrency - state.out))
    if tokens == 0 then
      look_again(slot, NOW + TURN)
      return 0
    end
    set_tokens(worker, slot, state, tokens)
  end
  if exclusive then
    new = state.owner ~= worker
    state.owner, state.ends = worker, start + TURN
    if limit.delay > 0 then
      most = math.min(most, 1 + math.floor(TURN / limit.delay))
    end
    if limit.interval > 0 then
      local ahead = state.ends - math.max(state.tat, start)
      most = math.min(most, math.max(1, math.floor(ahead / limit.interval) + limit.burst))
    end
  end
  save_slot(slot, state)
  return most, {slot, exclusive and state.ends - NOW or -1, new and 1 or 0, state.next - NOW,
    state.tat - NOW, limit.delay, limit.interval, limit.burst, tokens}
end

-- Where a limited slot that still has entries goes after a claim.
local function after_turn(slot)
  local state = slot_of(slot)
  if is_exclusive(state.limit) then look_again(slot, state.ends)
  elseif state.limit.concurrency > 0 and state.out >= state.limit.concurrency then
    look_again(slot, NOW + TURN)
  end
end

-- What a worker has of a slot, as give_turn() tells it; nil if the slot has no limits.
local function turn_of(worker, slot)
  local state = slot_of(slot)
  if not is_limited(state.limit) then return end
  local left = -1
  if is_exclusive(state.limit) then
    left = state.owner == worker and math.max(0, state.ends - NOW) or 0
  end
  local tokens = state.limit.concurrency > 0
    and tonumber(redis.call('HGET', tokens_key(worker), slot) or 0) or -1
  return {slot, left, 0, state.next - NOW, state.tat - NOW, state.limit.delay,
    state.limit.interval, state.limit.burst, tokens}
end

-- A worker is gone, and so are its downloads.
local function return_tokens(worker)
  local held = redis.call('HGETALL', tokens_key(worker))
  redis.call('DEL', tokens_key(worker))
  for i = 1, #held, 2 do
    local slot = held[i]
    if redis.call('EXISTS', slot_key(slot)) == 1 then
      local out = redis.call('HINCRBY', slot_key(slot), 'out', -tonumber(held[i + 1]))
      if out <= 0 then
        redis.call('HDEL', slot_key(slot), 'out')
        redis.call('PEXPIRE', slot_key(slot), FORGOTTEN)
      end
    end
    look_again(slot, NOW)
  end
end
