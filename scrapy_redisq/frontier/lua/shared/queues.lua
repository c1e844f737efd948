-- Puts entries into the queues of their slots, or keeps them back for some time.
--
-- Include  shared/keys shared/bounds shared/clock shared/counts shared/records

-- Keeps a record back for some time (ms).
local function delay(record, ms)
  redis.call('ZADD', DELAYED, NOW + ms * 1000, next_number('delays') .. ':' .. record)
end

-- Puts entries into one queue: in the run's order, or at the front, first entry first.
local added = 0

local function put(slot, priority, entries, order, at_front)
  local queue, n = queue_of(slot, priority), #entries
  local left = at_front or order == 'lifo'
  local pushed = entries
  if at_front then
    pushed = {}
    for i = 1, n do pushed[i] = entries[n + 1 - i] end
  end
  in_chunks(n, function(first, last)
    redis.call(left and 'LPUSH' or 'RPUSH', queue, unpack(pushed, first, last))
  end)
  -- Mostly they are there. But a queue that is found by no level would hide what is pushed to it.
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
