-- Turns and tokens: which worker may start requests of a slot. A slot with a delay or a rate has a
-- turn, a slot with a concurrency has tokens. Workers report how they used them.
--
-- The invariant: nobody starts a request of a slot without knowing of each earlier start by another
-- worker.
--   A turn has one owner. Another worker gets the turn when the owner has given it up, and has told
--   its last start (`last`, `tat`). Or the turn is over (`ends`): by then the owner has stopped by
--   itself, and its last start is taken for the latest that it can have been.
--   `out` is the sum of all workers' tokens. A worker downloads no more than it has tokens of.
--   Tokens leave the sum when their worker says that it needs fewer, or is reaped.
-- Crawls that share a slot stand in line for it: for some time it is for the workers of the first
-- one, which then goes behind the others. So all of them get to it, however many requests each has.
--
-- A reply may arrive late, or never. So a worker counts its turn from when it asked, and has only
-- tokens that a reply has brought.
--
-- Include  shared/slots/state

-- In the place of the time that is left of a turn: the slot has no limits.
local FREE = -2
-- Places in what told_of() returns: the time that is left of a turn, and whether it is new.
local LEFT, NEWS = 2, 3

-- How a crawl is called in line; and for how long (us) a slot is for the first one, or waits for it:
-- longer than between two exchanges.
local TAG, PLACE = string.match(META, '{.*}'), 2 * TURN

-- Takes a crawl out of the line, and another one is the first.
local function leave_line(state, tag)
  local from, to = string.find(state.line, tag, 1, true)
  if not from then return end
  state.line = string.sub(state.line, 1, from - 1) .. string.sub(state.line, to + 1)
  if from == 1 then state.place, state.served, state.short = NOW + PLACE, 0, 0 end
end

-- Whether a slot is for this crawl now, which stands in line from now on.
local function is_our_place(state)
  if not SHARED then return true end
  -- A crawl that does not come any more is not in line any more.
  if state.place <= NOW then leave_line(state, string.match(state.line, '^{.-}') or '') end
  if not string.find(state.line, TAG, 1, true) then state.line = state.line .. TAG end
  return string.sub(state.line, 1, #TAG) == TAG
end

local function is_alone(state) return not SHARED or state.line == TAG end

-- The first crawl has to wait, perhaps until then. Once it has got something, no worker of it makes
-- the other crawls wait for longer.
local function keep_place(state, ours, time)
  if SHARED and ours and state.served == 0 then
    state.place = math.max(state.place, time + PLACE)
  end
end

-- A worker reports on its turn. `item`: see the names; `since` us since its last start (-1: none),
-- `tat` us until that (may be negative), `tokens` that it needs, `done` 1 if it has no more use for
-- the slot.
local function report_turn(worker, item)
  local slot, since, tat, tokens, done = item[1], item[2], item[3], item[4], item[5]
  local state = slot_of(slot)
  if not is_limited(state) and state.out == 0 then return end
  if since >= 0 then state.last = math.max(state.last, NOW - since) end
  -- It may not have heard yet that the rate is faster now.
  state.tat = math.max(state.tat, NOW + math.min(tat, state.limit.burst * state.limit.interval))
  if concurrency_of(state) == 0 then tokens = 0 end
  if tokens > 0 or state.out > 0 then set_tokens(worker, slot, state, tokens) end
  if state.owner == worker then
    if done == 1 then
      state.owner = ''
      look_again(slot)
    end
  elseif state.owner ~= '' then
    -- A worker that waits asks again and again, until it has nothing left to start.
    state.wanted = done == 0 and NOW + TURN or 0
  end
  -- The others need not wait for a crawl that has no more requests.
  if SHARED and done == 1 and not redis.call('ZSCORE', READY, slot) then leave_line(state, TAG) end
  save_slot(slot, state)
end

-- A row for a worker about a slot: slot, us that are left of its turn (-1: it needs none, FREE: the
-- slot has no limits), 1 if the turn is new or -1 if it was refused, us until the next start by the
-- delay, us until tat, delay, interval, burst, tokens (-1: it needs none), us for which the slot is
-- parked, 1 if it has failures, 1 if a person has paused it.
local function told_of(slot, state, left, news, tokens)
  return {slot, left, news, next_by_delay(state) - NOW, state.tat - NOW, delay_of(state),
    state.limit.interval, state.limit.burst, tokens,
    state.held == 1 and HOUR or state.parked - NOW, state.fails > 0 and 1 or 0, state.held}
end

-- The turn and tokens that a worker has of a slot, without giving it any.
local function turn_of(worker, slot)
  local state = slot_of(slot)
  local left, tokens = -1, -1
  if not is_limited(state) then left = FREE
  elseif state.held == 1 or state.parked > NOW then left = 0
  elseif is_exclusive(state) then
    left = state.owner == worker and state.over == 0 and math.max(0, state.ends - NOW) or 0
  end
  if concurrency_of(state) > 0 then tokens = tokens_of(worker, slot) end
  return told_of(slot, state, left, 0, tokens)
end

-- When a worker may start a request of a slot with a delay or a rate, if it gets the turn; nil: it
-- does not, and the slot is moved to when it is worth asking again.
-- `ours`: the slot is for this crawl.
local function start_of_turn(worker, slot, state, ours)
  if state.owner == worker then
    if (state.wanted > NOW or not is_alone(state)) and state.ends <= NOW + EARLY then
      -- The owner may start more before it hears of this, and tells when it asks again. Then other
      -- workers may start.
      if state.over == 1 then
        state.ends = 0
        if state.wanted <= NOW then state.owner = '' end -- it may ask in the place of its crawl
      end
      state.over = 1
      return save_slot(slot, state)
    end
    return first_start(state)
  end
  if state.owner ~= '' then
    if state.ends > NOW then
      keep_place(state, ours, state.ends)
      if SHARED then save_slot(slot, state) end
      return look_again(slot, state.ends)
    end
    -- The owner never reported on its turn.
    state.last = math.max(state.last, state.ends)
    state.tat = math.max(state.tat, state.ends + state.limit.burst * state.limit.interval)
  end
  local start = first_start(state)
  -- The first crawl may have to wait for longer than this one, by limits that are stricter, or were.
  local may_pass = start <= NOW + EARLY and state.place > NOW + EARLY + TURN + PLACE
  if not ours and not may_pass then
    save_slot(slot, state)
    return look_again(slot, math.min(state.place, NOW + TURN))
  end
  if start <= NOW + EARLY then return start end
  keep_place(state, ours, start)
  if state.wanted <= NOW then state.owner = '' end -- else it does not come first again
  save_slot(slot, state)
  look_again(slot)
end

-- Gives tokens for up to `most` downloads. -> how many the worker has (nil: there are none for it),
-- how many requests it may claim
local function give_tokens(worker, slot, state, most, ours)
  local had, left = tokens_of(worker, slot), concurrency_of(state) - state.out
  -- When the downloads of this crawl end, their tokens are for the first one.
  if not ours and state.short > NOW then left = -had end
  -- A worker without any needs one for the requests that it holds, though it may claim no more.
  local asked = had == 0 and math.max(1, most) or most
  local tokens = math.max(0, had + math.min(asked, left))
  if SHARED and ours and asked > left then state.short = NOW + PLACE end
  if SHARED and ours and had + tokens > 0 then state.served = 1 end
  if had + tokens == 0 then return end
  -- A slot that is new to the worker: more would only wait in it, and keep it from other slots.
  if had == 0 then most = math.min(most, 2 * tokens) end
  if state.fails > 0 then most = math.min(most, 1) end
  -- Where the limit was lowered there are too many, and downloads that have them: they are
  -- out until the worker says that it has fewer.
  if left >= 0 then set_tokens(worker, slot, state, tokens) else most = 0 end
  return tokens, most
end

-- Gives a worker the turn and tokens of a slot, if they are to be had.
-- -> how many requests it may claim at most, what it is told
-- With 0 the slot is moved to when it is worth asking again.
local function give_turn(worker, slot, most)
  local state = slot_of(slot)
  -- Nothing is known any more of what was set aside and had no requests for an hour.
  if state.fails == 0 then redis.call('ZREM', ASIDE, slot) end
  if not is_limited(state) then return most end
  local open_at = state.held == 1 and NOW + HOUR or state.parked - EARLY
  if open_at > NOW then
    look_again(slot, open_at)
    return 0
  end
  local exclusive, start, news, tokens = is_exclusive(state), NOW, 0, -1
  local ours = is_our_place(state)
  if exclusive then
    start = start_of_turn(worker, slot, state, ours)
    if not start then return 0 end
  end
  if concurrency_of(state) > 0 then
    tokens, most = give_tokens(worker, slot, state, most, ours)
    if not tokens then
      keep_place(state, ours, NOW)
      if SHARED then save_slot(slot, state) end
      look_again(slot, NOW + (ours and not is_alone(state) and EARLY or TURN))
      return 0
    end
  end
  if exclusive then
    if state.owner ~= worker then news, state.wanted = 1, 0 end
    if news == 1 or state.wanted <= NOW and is_alone(state) then state.ends = start + TURN end
    if SHARED and ours and news == 1 then
      state.served, state.place = 1, math.min(state.place, state.ends - EARLY)
    end
    state.owner, state.over = worker, 0
    if delay_of(state) > 0 then most = math.min(most, 1 + math.floor(TURN / delay_of(state))) end
    local interval = state.limit.interval
    if interval > 0 then
      local ahead = state.ends - math.max(state.tat, start)
      most = math.min(most, math.max(1, math.floor(ahead / interval) + state.limit.burst))
    end
  end
  save_slot(slot, state)
  return most, told_of(slot, state, exclusive and state.ends - NOW or -1, news, tokens)
end

-- Where a limited slot that still has entries goes after a claim.
local function after_turn(slot)
  local state = slot_of(slot)
  if is_exclusive(state) then look_again(slot, state.ends)
  elseif concurrency_of(state) > 0 and state.out >= concurrency_of(state) then
    look_again(slot, NOW + TURN)
  end
end
