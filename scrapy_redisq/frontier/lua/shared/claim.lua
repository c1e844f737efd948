-- Moves entries of slots that are due to the worker of an exchange. A turn or a token that brings no
-- entry would keep the slot from other workers: a slot is asked only if it is to get an entry.
--
-- Include  shared/counts shared/queues shared/dead shared/leases shared/slots/turns

-- The claimed leases: lease, record, lease, record...
local claimed_leases, n_claimed, bytes, suspects = {}, 0, 0, input.suspects
local first_number, suffix

-- Makes a lease of a record, which hold_from() keeps.
local function add_lease(record)
  if not suffix then
    first_number = number_of(redis.call('HGET', COUNTS, 'claimed'))
    -- The time keeps an id from being used again after the counter lost its last values.
    suffix = '.' .. integer(NOW)
  end
  n_claimed = n_claimed + 1
  claimed_leases[2 * n_claimed - 1] = string.format('%d', first_number + n_claimed) .. suffix
  claimed_leases[2 * n_claimed] = record
end

-- Keeps the leases behind the first `n`, at most PORTION, at once: a failure at a later slot loses
-- none of them.
local function hold_from(n)
  if n_claimed == n then return end
  redis.call('HSET', leases_of(input.worker), unpack(claimed_leases, 2 * n + 1))
  count('claimed', n_claimed - n)
end

-- The leases of the worker's last claim: a reply was lost. The worker passes over those it knows.
local function leases_again()
  local ids, found = lease_ids(input.worker), {}
  local function time(id) return string.match(id, '%.(%d+)$') or '' end
  -- Of the highest number: the time goes back a little when the server's clock does.
  local last = time(ids[#ids] or '')
  for _, id in ipairs(ids) do
    local record = time(id) == last and redis.call('HGET', leases_of(input.worker), id)
    if record and origin_of(record) then found[#found + 1], found[#found + 2] = id, record end
  end
  return found
end

-- Takes up to `most` entries from a queue. Before Redis 7.0 one by one: with list-compress-depth 1
-- a command that reads several crashes Redis 6.2 on lists that were pushed to at the front.
local function pop(queue, most)
  if redis.REDIS_VERSION_NUM then return redis.call('LPOP', queue, most) or {} end
  local entries = {}
  for i = 1, most do entries[i] = redis.call('LPOP', queue) or nil end
  return entries
end

-- Makes leases of popped entries. -> how many; whether the rest was put back, behind a suspect that
-- the worker must not have yet
local function take_entries(slot, priority, queue, entries)
  local before, barred = n_claimed, false
  local origin = record_of(slot, is_priority(priority) and priority or '0', '')
  for i, entry in ipairs(entries) do
    if deliveries_of(entry) >= input.suspect_from then
      if suspects == 0 then
        for j = #entries, i, -1 do redis.call('LPUSH', queue, entries[j]) end
        barred = true
        break
      end
      suspects = suspects - 1
    end
    bytes = bytes + #entry
    if #entry > input.most_bytes then condemn(slot, entry, queue, input.worker)
    else add_lease(origin .. entry) end
  end
  hold_from(before)
  return n_claimed - before, barred
end

-- Moves up to `most` entries of a slot to the worker, highest priority first. -> how many
local function claim_slot(slot, most)
  local levels, n, more, barred = levels_of(slot), 0, true, false
  while n < most and more and not barred and bytes < MOST_BYTES do
    local priority, next_priority = unpack(redis.call('ZRANGE', levels, 0, 1))
    if not priority then
      more = false
      break
    end
    local queue, wanted = queue_of(slot, priority), math.min(most - n, PORTION)
    local entries, taken = pop(queue, wanted), 0
    taken, barred = take_entries(slot, priority, queue, entries)
    n = n + taken
    if not barred and (#entries < wanted or redis.call('EXISTS', queue) == 0) then
      redis.call('ZREM', levels, priority)
      more = next_priority ~= nil
    end
  end
  if more then
    redis.call('ZADD', READY, NOW + n_claimed, slot) -- behind the others
  else
    redis.call('ZREM', READY, slot)
  end
  count_leases(slot, n)
  return n
end

-- Places in a report on a turn, see report_turn().
local SLOT, DONE, WANT = 1, 5, 6

local limited, told_turns, has_turn, asked_for = false, {}, {}, {}

local function free_room(slot) return input.room and input.room[slot] or input.slot_limit end

local function due_slots(most)
  return redis.call('ZRANGEBYSCORE', READY, '-inf', NOW, 'LIMIT', 0, most)
end

-- -> how many of `most` entries the worker may claim of a slot
local function admit(slot, most)
  if not limited then return most end
  local n, turn = give_turn(input.worker, slot, most)
  if turn then
    told_turns[#told_turns + 1] = turn
    has_turn[slot] = true
  end
  return n
end

-- The slots that the worker has turns of must not take all: up to half is for other slots that are
-- due. If the worker wants one entry at a time, each kind gets it now and then.
local function reserved_for_others(turns, look_at)
  local mine, others = {}, 0
  for _, item in ipairs(turns) do mine[item[SLOT]] = true end
  for _, slot in ipairs(due_slots(look_at)) do
    if not mine[slot] and free_room(slot) > 0 then others = others + 1 end
  end
  return math.min(others, math.floor((input.want + NOW % 2) / 2))
end

-- Claims up to `most` entries of slots that the worker has told of.
local function claim_of_turns(turns, most)
  for _, item in ipairs(turns) do
    local slot, n = item[SLOT], 0
    if item[DONE] == 0 then
      asked_for[slot] = true
      n = admit(slot, math.min(item[WANT], math.max(0, most - n_claimed)))
      if n > 0 then claim_slot(slot, n) end
    end
    if not has_turn[slot] then
      local turn = turn_of(input.worker, slot)
      local is_free = turn[LEFT] == FREE
      if item[DONE] == 0 and n == 0 and not is_free then turn[NEWS] = -1 end -- refused
      -- A worker that is done with a slot may believe that it is parked, which it no longer is.
      if item[DONE] == 0 or is_free then told_turns[#told_turns + 1] = turn end
    end
  end
end

-- Claims the rest of what is wanted, of the slots that are due. -> whether more slots may be due
local function claim_of_due(look_at)
  local slots, open = due_slots(look_at), {}
  for _, slot in ipairs(slots) do
    -- Each of them is to get an entry: a turn without one would keep the slot from other workers.
    if n_claimed + #open >= input.want then break end
    if not is_text(slot) then corrupt(READY) end
    local room = free_room(slot)
    -- A slot that the worker has reported on has given what was asked for. To ask twice would end
    -- a turn without the worker hearing of it.
    if room > 0 then room = asked_for[slot] and 0 or admit(slot, math.min(room, input.want)) end
    if room > 0 then open[#open + 1] = {slot, room} end
  end
  -- An equal share of each slot first, then the rest of slots that have more.
  while #open > 0 and n_claimed < input.want do
    local share = math.max(1, math.floor((input.want - n_claimed) / #open))
    local still_open = {}
    for _, item in ipairs(open) do
      local slot, room = unpack(item)
      local most = math.min(share, room, input.want - n_claimed)
      if most > 0 and claim_slot(slot, most) == most and room > most then
        still_open[#still_open + 1] = {slot, room - most}
      end
    end
    open = still_open
  end
  return #slots == look_at
end

-- -> leases and their records, the turns that the worker is told of, and when it is worth asking
-- again (nil: nothing waits); `due`: the same of delayed entries
local function claim(turns, with_limits, due)
  limited = with_limits
  local look_at, more_are_due = input.want + #turns, false
  for _ in pairs(input.room or {}) do look_at = look_at + 1 end
  if limited then
    local reserved = #turns > 0 and input.want > 0 and reserved_for_others(turns, look_at) or 0
    claim_of_turns(turns, input.want - reserved)
  end
  if input.want > 0 then
    more_are_due = claim_of_due(look_at)
  elseif #due_slots(1) > 0 then
    due = NOW -- the worker does not ask, but it should know
  end
  for slot in pairs(has_turn) do after_turn(slot) end
  if limited and n_claimed == 0 and more_are_due then
    due = NOW -- slots that gave nothing have been moved behind them
  elseif limited and n_claimed == 0 then
    local later = redis.call('ZRANGEBYSCORE', READY, '(' .. integer(NOW), '+inf', 'WITHSCORES',
      'LIMIT', 0, 1)
    local at = tonumber(later[2])
    if at then due = math.min(due or at, at) end
  end
  return claimed_leases, told_turns, due
end

-- The turns that a worker is told of whose reply was lost.
local function turns_again(turns, leases)
  local slots, told = {}, {}
  for _, item in ipairs(turns) do slots[item[SLOT]] = true end
  for i = 2, #leases, 2 do slots[origin_of(leases[i])] = true end
  -- It may have brought a token without a lease.
  for _, slot in ipairs(redis.call('HKEYS', tokens_key(input.worker))) do slots[slot] = true end
  for slot in pairs(slots) do
    local turn = turn_of(input.worker, slot)
    -- The lost reply may have brought the turn, with the last starts of other workers.
    if turn[LEFT] > 0 then turn[NEWS] = 1 end
    told[#told + 1] = turn
  end
  return told
end
