-- Back-off of a slot. While its last news is a failure, nothing of it is started before
-- `parked`, and then all workers together download one request of it at a time. The first success
-- ends that. A slot that has failed too often in a row is set aside: a run may end without it, and
-- it is tried again when a crawl is started again.
--
-- Include  shared/slots/state

-- A slot is set aside as long as it has `give_up` failures in a row (0: never), and no person has
-- paused it, for whom the crawl stays open. ASIDE lists such slots. -> whether it is
local function set_fails(slot, state, fails, give_up)
  state.fails = fails
  if give_up > 0 and fails >= give_up and state.held == 0 then
    redis.call('ZADD', ASIDE, 'NX', NOW, slot)
    return true
  end
  redis.call('ZREM', ASIDE, slot)
end

local function fail(slot, state, asked, jitter, longest, give_up)
  -- Microseconds. The first pause is short, because many sites answer 503 now and then. Each
  -- further failure doubles it; those of a slot that is set aside grow on, up to an hour.
  local FIRST_PAUSE, LONGEST_PAUSE = 50000, 3600000000
  state.failed = NOW
  local is_aside = set_fails(slot, state, state.fails + 1, give_up)
  if asked >= 0 and not is_aside then return end -- the host has said it itself
  if is_aside then
    longest = math.min(LONGEST_PAUSE, longest * 2 ^ math.min(state.fails - give_up + 1, 16))
  end
  local first = math.max(FIRST_PAUSE, state.limit.delay, state.robots)
  local pause = math.min(longest, first * 2 ^ math.min(state.fails - 1, 40))
  state.parked = math.max(state.parked, NOW + math.floor(pause * (0.5 + jitter / 2000)))
end

-- A download has ended, of its slot. `item`: see below. `terms`: the longest pause (us), failures
-- after which a slot is set aside (0: never). -> whether it was a failure
local function report_download(item, terms)
  -- `status` 0: no answer; `since` us since it was begun; `asked` us that the host wants to be
  -- left alone, -1: it says nothing; `verdict` 1: a failure, -1: a success, 0: neither; `jitter` a
  -- random number of 0 to 1000; `latency` in us, -1: not of interest.
  local slot, status, since, asked, verdict, jitter, latency = unpack(item)
  local longest, give_up = unpack(terms)
  -- Workers are told of each pause that is at least so long (us), of shorter ones once in so long.
  local TELL = 1000000
  local state = slot_of(slot)
  -- What was begun before the last failure was known says nothing new.
  local is_news = NOW - since >= state.failed
  if verdict <= 0 or is_news then state.status = status end
  set_throttle(state, latency)
  if verdict < 0 and is_news and state.fails > 0 then
    set_fails(slot, state, 0, give_up)
    look_again(slot)
  elseif verdict > 0 then
    local was = math.max(0, state.parked - NOW)
    -- Of a slot with turns no other worker may start anything but the one that has the turn.
    local others_may_start = not is_exclusive(state)
      or (state.owner ~= '' and state.owner ~= input.worker)
    if is_news then fail(slot, state, asked, jitter, longest, give_up) end
    state.parked = math.max(state.parked, NOW + math.max(0, asked))
    -- The turn of another worker, which may not have heard of this, goes on until its end.
    if state.owner == input.worker then state.owner = '' end
    look_again(slot, state.parked - EARLY)
    redis.call('HSET', META, 'limited', 1)
    local pause = state.parked - NOW
    local is_told = was < TELL and pause >= TELL or was == 0 and NOW - state.told >= TELL
    if is_told and others_may_start then
      state.told = NOW
      announce(slot, pause)
    end
  end
  save_slot(slot, state)
  return verdict > 0
end

-- Slots that were set aside before `since` are tried again, a bounded number at a time; `retry` in
-- meta is there as long as there are more.
local function retry_aside(since)
  local aside = redis.call('ZRANGEBYSCORE', ASIDE, '-inf', since, 'LIMIT', 0, 100)
  for _, slot in ipairs(aside) do
    redis.call('ZREM', ASIDE, slot)
    redis.call('HDEL', slot_key(slot), 'parked', 'fails')
    look_again(slot, NOW)
  end
  if #aside < 100 then redis.call('HDEL', META, 'retry') end
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
-- `since` is what this keeps as `stuck` in meta.
local function stuck_for(counts, since)
  local aside = redis.call('ZCARD', ASIDE)
  since = since and tonumber(since)
  if aside == 0 or redis.call('EXISTS', READY, BUSY) == 0 or counts.starting > 0
      or redis.call('ZCARD', DELAYED) > 0 or redis.call('ZCARD', READY) > aside
      or any_but_aside() then
    if since then redis.call('HDEL', META, 'stuck') end
    return -1
  end
  if since then return math.floor((NOW - since) / 1000000) end
  redis.call('HSET', META, 'stuck', integer(NOW))
  return 0
end
