-- Ends leases: those that an exchange names, and all of a worker that leaves or is dead.
--
-- Include  shared/counts shared/queues shared/dead shared/slots/state

-- Takes leases out; calls f(record, item) for each that the worker still held. `items` begin with a
-- lease.
local function take_leases(items, f)
  local key, taken = leases_of(input.worker), {}
  in_chunks(#items, function(first, last)
    local ids = {}
    for i = first, last do ids[#ids + 1] = items[i][1] end
    local records = redis.call('HMGET', key, unpack(ids))
    redis.call('HDEL', key, unpack(ids))
    for i, record in ipairs(records) do
      local slot = record and origin_of(record)
      if not record or taken[ids[i]] then
        count('stale', 1)
      elseif slot then
        count_leases(slot, -1)
        f(record, items[first + i - 1])
      else -- somebody has written over it
        count('leased', -1)
        condemn('', record, key, input.worker)
      end
      taken[ids[i]] = true
    end
  end)
end

-- All ends of leases in an exchange's input.
local function finish_leases(order)
  local given_back = {}

  for _, group in ipairs(input.done or {}) do
    local slot, ids = unpack(group)
    local finished = 0
    in_chunks(#ids, function(first, last)
      finished = finished + redis.call('HDEL', leases_of(input.worker), unpack(ids, first, last))
    end)
    count_leases(slot, -finished)
    count('finished', finished)
    count('stale', #ids - finished)
  end

  take_leases(input.dead or {}, function(record, item)
    local lease, reason, detail, kind, status, foreign = unpack(item)
    local slot, priority, entry = parse_record(record)
    bury(slot, priority, entry, {reason = reason, detail = detail, error = kind, status = status,
      foreign = foreign, worker = input.worker, lease = lease})
    if foreign then count_foreign() end
  end)

  -- To the front; but a second failure may be the request's own, so other requests are tried first.
  take_leases(input.released or {}, function(record, item)
    local slot, priority, entry = parse_record(record)
    local request = item[2] -- of what its slot backs off from
    if request then entry = string.sub(entry, 1, 1) .. request end
    if request and slot_of(slot).fails >= 2 then put(slot, priority, {entry}, 'fifo')
    else given_back[#given_back + 1] = record_of(slot, priority, entry) end
    count('released', 1)
  end)
  put_back(given_back)

  -- A retry takes the place of what it is a retry of.
  take_leases(input.retried or {}, function(record, item)
    local _, priority, request, ms = unpack(item)
    local slot, entry = origin_of(record), '\0' .. request
    if ms > 0 then delay(record_of(slot, priority, entry), ms)
    else put(slot, priority, {entry}, order) end
    for _, name in ipairs({'retried', 'created', 'finished'}) do count(name, 1) end
  end)
end

-- The ids of a worker's leases, in the order of their claims.
local function lease_ids(worker)
  local ids, numbers = redis.call('HKEYS', leases_of(worker)), {}
  for _, id in ipairs(ids) do numbers[id] = tonumber(string.match(id, '^%d+')) or 0 end
  table.sort(ids, function(a, b) return numbers[a] < numbers[b] end)
  return ids
end

-- Takes a worker's leases back, to the front: about 100 of them, or 4 MB, in one script. `died`:
-- the worker is dead, and each lease counts one more delivery. -> how many went back, how many
-- became dead letters
local most_back, bytes_back = 100, 0

local function take_back(worker, died)
  local key, back, taken = leases_of(worker), {}, 0
  local function is_over() return most_back <= 0 or bytes_back >= MOST_BYTES end
  for _, id in ipairs(is_over() and {} or lease_ids(worker)) do
    if is_over() then break end
    local record = redis.call('HGET', key, id)
    most_back, bytes_back, taken = most_back - 1, bytes_back + #record, taken + 1
    redis.call('HDEL', key, id)
    local slot, priority, entry = parse_record(record)
    local deliveries = slot and deliveries_of(entry) + (died and 1 or 0)
    if slot then count_leases(slot, -1) end
    if not slot then
      condemn('', record, key, worker)
    elseif died and deliveries >= input.max_deliveries then
      bury(slot, priority, with_deliveries(entry, deliveries), {reason = 'deliveries',
        worker = worker, lease = id, detail = 'its worker died ' .. deliveries .. ' times'})
    else
      back[#back + 1] = record_of(slot, priority, with_deliveries(entry, deliveries))
    end
  end
  put_back(back)
  count(died and 'reclaimed' or 'released', #back)
  return #back, taken - #back
end
