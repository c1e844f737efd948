-- Who may start requests of a slot: turns of slots with a delay or a rate, and tokens of those
-- with a concurrency, are given, and reported on.
--
-- Include  shared/clock shared/slots/state shared/slots/tokens shared/slots/backoff

-- Stands for what is left of the turn of a slot without limits.
local FREE = -2

-- A worker tells what it did with its turn. `item`: slot, us since its last start (-1: none), us
-- until its tat (may be negative), tokens that it needs, 1 if it has no more use for it.
local function report_turn(worker, item)
  local slot, state = item[1], slot_of(item[1])
  local limit = state.limit
  if not is_limited(state) and state.out == 0 then return end
  if item[2] >= 0 then state.last = math.max(state.last, NOW - item[2]) end
  -- It may not have heard yet that the rate is faster now.
  state.tat = math.max(state.tat, NOW + math.min(item[3], limit.burst * limit.interval))
  if concurrency_of(state) > 0 then set_tokens(worker, slot, state, item[4])
  elseif state.out > 0 then set_tokens(worker, slot, state, 0) end
  -- A worker that waits asks again and again, until it has nothing left to start.
  if state.owner ~= worker and state.owner ~= '' then
    state.wanted = item[5] == 0 and NOW + TURN or 0
  end
  if item[5] == 1 and state.owner == worker then
    state.owner = ''
    look_again(slot, first_start(state) - EARLY)
  end
  save_slot(slot, state)
end

-- Gives a worker the turn and tokens of a slot, if they are to be had.
-- -> how many requests it may claim at most, what the worker is told of it: slot, us that are left
-- of the turn (-1: it needs none, FREE: the slot has no limits), 1 if the turn is new or -1 if it
-- was refused, us until the next start by the delay, us until tat, delay, interval, burst, tokens
-- (-1: it needs none), us for which the slot is parked, 1 if it is in trouble, 1 if a person has
-- paused it
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
    if state.owner == worker and state.wanted > NOW and state.ends <= NOW + EARLY then
      -- What it begins before it hears of this, it tells when it asks again; then other workers may
      -- start.
      if state.over == 1 then state.ends = 0 end
      state.over = 1
      save_slot(slot, state)
      return 0
    end
    start = first_start(state)
    if start > NOW + EARLY and state.owner ~= worker then
      if state.wanted <= NOW then state.owner = '' end -- else it does not come first again
      save_slot(slot, state)
      look_again(slot, start - EARLY)
      return 0
    end
  end
  local tokens, concurrency = -1, concurrency_of(state)
  if concurrency > 0 then
    local had = tokens_of(worker, slot)
    if had == 0 and not (state.out >= 0 and state.out < concurrency) then
      recount(slot, state)
    end
    local left = concurrency - state.out
    -- One that has none needs one for what it holds, though it may claim nothing more.
    tokens = math.max(0, had + math.min(had == 0 and math.max(1, most) or most, left))
    if had + tokens == 0 then
      look_again(slot, NOW + TURN)
      return 0
    end
    -- A slot that is new to the worker: more would only wait in it, and keep it from other slots.
    if had == 0 then most = math.min(most, 2 * tokens) end
    if state.fails > 0 then most = math.min(most, 1) end
    -- Where the limit was lowered there are too many, and downloads that have them: they are
    -- out until the worker says that it has fewer.
    if left >= 0 then set_tokens(worker, slot, state, tokens) else most = 0 end
  end
  if exclusive then
    new = state.owner ~= worker
    if new then state.wanted = 0 end
    if state.wanted <= NOW then state.ends = start + TURN end
    state.owner, state.over = worker, 0
    if delay > 0 then most = math.min(most, 1 + math.floor(TURN / delay)) end
    if limit.interval > 0 then
      local ahead = state.ends - math.max(state.tat, start)
      most = math.min(most, math.max(1, math.floor(ahead / limit.interval) + limit.burst))
    end
  end
  save_slot(slot, state)
  return most, {slot, exclusive and state.ends - NOW or -1, new and 1 or 0,
    next_by_delay(state) - NOW, state.tat - NOW, delay, limit.interval, limit.burst, tokens,
    state.parked - NOW, state.fails > 0 and 1 or 0, 0}
end

-- Where a limited slot that still has entries goes after a claim.
local function after_turn(slot)
  local state = slot_of(slot)
  if is_exclusive(state) then look_again(slot, state.ends)
  elseif concurrency_of(state) > 0 and state.out >= concurrency_of(state) then
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
    left = state.owner == worker and state.over == 0 and math.max(0, state.ends - NOW) or 0
  end
  if concurrency_of(state) > 0 then tokens = tokens_of(worker, slot) end
  local parked = state.held == 1 and PROBE or state.parked - NOW
  return {slot, left, 0, next_by_delay(state) - NOW, state.tat - NOW, delay_of(state),
    state.limit.interval, state.limit.burst, tokens, parked, state.fails > 0 and 1 or 0,
    state.held == 1 and 1 or 0}
end
