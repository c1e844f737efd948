-- Slots that fail: nothing is started for a pause, then one request at a time is tried. Each
-- failure in a row makes the pause longer, until the slot is set aside. A success ends all of it.
--
-- Include  shared/keys shared/clock shared/slots/state

-- The first pause after a failure (us). It is short, because many sites answer 503 now and then.
-- Each further failure in a row doubles it.
local FIRST_PAUSE = 50000
-- Without a failure for so long a slot is in trouble no longer, an hour (us).
local CALM = 3600000000
-- Of one slot's failures other workers are told once in so long (us). A worker that has been told
-- asks about the slot in each exchange for a while.
local TELL = 1000000

-- Whether a slot goes on failing now and then, for longer than `terms` allow.
local function is_worn(state, terms)
  return terms[3] > 0 and state.trouble > 0 and state.failed - state.trouble >= terms[3]
end

-- A slot that has not failed for long is not aside because it once did now and then; nor is one of
-- which nothing is known any more, as when it had nothing to be fetched for an hour.
local any_aside
local function calm_down(slot, state)
  if state.trouble == 0 then
    if any_aside == nil then any_aside = redis.call('EXISTS', ASIDE) == 1 end
    if any_aside then redis.call('ZREM', ASIDE, slot) end
    return
  end
  if NOW - state.failed < CALM or state.fails > 0 then return end
  state.trouble = 0
  redis.call('ZREM', ASIDE, slot)
  save_slot(slot, state)
end

-- What a request did to its slot. `item`: slot, HTTP status (0: no answer), us since it was begun,
-- us that the host asked to be left alone (-1: it did not), 1 for a failure, -1 for a success, else
-- 0, a random number of 0 to 1000, latency in us (-1: not of interest).
-- `terms`: longest pause (us), failures after which a slot is set aside (0: never), us after which
-- one is that fails now and then (0: never).
local function report_download(item, terms)
  local slot, state, verdict, latency = item[1], slot_of(item[1]), item[5], item[7]
  -- What was begun before the last failure was known says nothing new.
  local is_news = NOW - item[3] >= state.failed
  if verdict <= 0 or is_news then state.status = item[2] end
  if throttle and latency >= 0 then
    -- As Scrapy's AutoThrottle does, for the slot of the whole fleet.
    local target, was = latency / throttle.target, throttled(state)
    local delay = math.max(target, (was + target) / 2)
    delay = math.min(math.max(delay, throttle.least), throttle.most)
    if state.status == 200 or delay > was then was = delay end
    state.throttle, state.latency = math.max(1, math.floor(was)), latency
  end
  if verdict < 0 and state.fails > 0 and is_news then
    if not is_worn(state, terms) and redis.call('ZREM', ASIDE, slot) == 1 then
      redis.call('HDEL', META, 'stuck')
    end
    state.fails, state.pause = 0, 0
    look_again(slot, first_start(state) - EARLY)
  elseif verdict > 0 then
    local asked, now = item[4], NOW
    -- Other workers know that it is parked, or have no turn.
    local others_may_start = state.parked <= NOW and state.fails == 0 and not (is_exclusive(state)
      and (state.owner == '' or state.owner == input.worker))
    if is_news then
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
    -- The turn of another worker, which may not have heard of this, goes on until its end.
    if state.owner == input.worker then state.owner = '' end
    look_again(slot, state.parked - EARLY)
    redis.call('HSET', META, 'limited', 1)
    if others_may_start and NOW - state.told >= TELL then
      state.told = NOW
      announce(slot, state.parked - NOW)
    end
  end
  save_slot(slot, state)
end

-- The status of a slot's last answer, which people are shown.
local function note_status(slot, status)
  local key = slot_key(slot)
  if type(redis.pcall('HSET', key, 'status', status)) == 'table' then return end
  if slots[slot] then slots[slot].status = status end
  local left = redis.call('PTTL', key)
  -- A slot that must not be forgotten has no time to live, and more than this one value.
  if (left == -1 and redis.call('HLEN', key) == 1) or (left >= 0 and left < FORGOTTEN) then
    redis.call('PEXPIRE', key, FORGOTTEN)
  end
end
