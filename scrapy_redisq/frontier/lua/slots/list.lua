-- Slots, for people: all that have requests, queued or held by workers, and all that are set aside,
-- or that a person has paused or limited.
--
-- Input    names {slot...}, or cursors {key = cursor} ('0' at first, then those of the last reply);
--          priorities (of the first name, what waits by priority is told, too)
-- Reply    msgpack map: cursors {key = cursor} of what there is more of, slots {{slot, queued (at
--          least, if the slot has requests of more than 50 priorities),
--          leased, us until the next start, us of its delay by limit, by robots.txt and by
--          latencies, interval, burst, concurrency, the person's limit or '', us for which it
--          is parked, failures in a row, status of the last answer (see shared/slots/state.lua),
--          and in us since 1970 since when it has been set aside, paused and limited by a person
--          (0: it is not), us for which it might have been claimed from, and was not (-1: it may
--          not)}...}, priorities {{priority, queued}...}, the most urgent first, at most 100
-- Cost     about 200 slots and 10,000 queues a call; a slot may come twice; reads only
-- Include  shared/slots/state

read_throttle(redis.call('HGET', META, 'throttle'))
local KEYS_OF = {ready = READY, busy = BUSY, aside = ASIDE, paused = PAUSED, ruled = RULED}
local names, known, cursors = {}, {}, {}
local function add(slot)
  if not known[slot] and is_text(slot) then
    known[slot] = true
    names[#names + 1] = slot
  end
end
for _, slot in ipairs(input.names or {}) do add(slot) end
for name, cursor in pairs(input.cursors or {}) do
  local scan = name == 'busy' and 'HSCAN' or 'ZSCAN'
  local found = redis.call(scan, KEYS_OF[name], cursor, 'COUNT', name == 'ready' and 150 or 50)
  for i = 1, #found[2], 2 do add(found[2][i]) end
  if found[1] ~= '0' then cursors[name] = found[1] end
end

local share = math.max(10, math.min(1000, math.floor(10000 / #names))) -- of the queues of a call

-- Since when a slot is in a set (us); 0: it is not.
local function since(key, slot) return number_of(redis.call('ZSCORE', key, slot)) end

-- Entries carry no time. After a claim a slot is due from then on, behind the others.
local function due_for(slot)
  local at = since(READY, slot)
  return at > 0 and at <= NOW and NOW - at or -1
end

local answer = {}
for i, slot in ipairs(names) do
  local state = slot_of(slot)
  local limit = state.limit
  answer[i] = {slot, queued(slot, share), number_of(redis.call('HGET', BUSY, slot)),
    first_start(state) - NOW, limit.delay, state.robots, throttled(state),
    limit.interval, limit.burst, limit.concurrency, state.own, math.max(0, state.parked - NOW),
    state.fails, state.status, since(ASIDE, slot), since(PAUSED, slot), since(RULED, slot),
    due_for(slot)}
end
local priorities = {}
if input.priorities then
  for i, priority in ipairs(redis.call('ZRANGE', levels_of(names[1]), 0, 99)) do
    priorities[i] = {number_of(priority), redis.call('LLEN', queue_of(names[1], priority))}
  end
end
return cmsgpack.pack({cursors = cursors, slots = answer, priorities = priorities})
