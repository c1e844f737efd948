-- Puts entries into the queues of their slots, or keeps them back for some time.
--
-- Include  shared/counts shared/dead

-- Keeps a record back for some time (ms).
local function delay(record, ms)
  redis.call('ZADD', DELAYED, NOW + ms * 1000, next_number('delays') .. ':' .. record)
end

-- Puts entries into one queue: in the run's order, or at the front, first entry first.
local added = 0

local function put(slot, priority, entries, order, at_front)
  local queue, n = queue_of(slot, priority), #entries
  local command = (at_front or order == 'lifo') and 'LPUSH' or 'RPUSH'
  local pushed = entries
  if at_front then
    pushed = {}
    for i = 1, n do pushed[i] = entries[n + 1 - i] end
  end
  in_chunks(n, function(first, last)
    redis.call(command, queue, unpack(pushed, first, last))
  end)
  -- Mostly they are there. But a queue that no level leads to would hide requests of later runs,
  -- too: a reset does not find it.
  redis.call('ZADD', levels_of(slot), -tonumber(priority), priority)
  redis.call('ZADD', READY, 'NX', NOW, slot)
  added = added + n
end

-- Puts records back to the front of their queues, keeping their order.
local function put_back(records)
  local groups, order = {}, {}
  for _, record in ipairs(records) do
    local slot, priority, entry = parse_record(record)
    local queue = queue_of(slot, priority)
    if not groups[queue] then
      groups[queue] = {slot = slot, priority = priority, entries = {}}
      order[#order + 1] = queue
    end
    table.insert(groups[queue].entries, entry)
  end
  for _, queue in ipairs(order) do
    local group = groups[queue]
    put(group.slot, group.priority, group.entries, nil, true)
  end
end

-- Entries that are moved at once, whatever their size.
local PORTION = 25

-- Puts delayed entries that are due into their queues: about 100 of them, or 4 MB. -> when the next
-- one is due; nil if there is none
local function promote(order)
  local due = first_score(DELAYED)
  if not due or due > NOW then return due end
  local promoted, bytes = 0, 0
  repeat
    local members = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', NOW, 'LIMIT', 0, PORTION)
    for _, member in ipairs(members) do
      local slot, priority, entry = parse_record(delayed_record(member))
      redis.call('ZREM', DELAYED, member)
      if slot then put(slot, priority, {entry}, order)
      else condemn('', member, DELAYED, input.worker) end
      promoted, bytes = promoted + 1, bytes + #member
    end
  until #members < PORTION or promoted >= 100 or bytes >= MOST_BYTES
  return first_score(DELAYED)
end
