-- Ends the leases of a worker that an exchange names.
--
-- Include  shared/keys shared/bounds shared/counts shared/records shared/queues shared/dead
--          shared/slots/state

-- Takes leases out; calls f(record, item) for each that the worker still held. `items` are leases,
-- or begin with one.
local function take_leases(items, f)
  local key, taken = leases_of(input.worker), {}
  in_chunks(#items, function(first, last)
    local ids = {}
    for i = first, last do
      ids[#ids + 1] = type(items[i]) == 'table' and items[i][1] or items[i]
    end
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
        condemn('', record, key, input.dead_max, input.worker)
      end
      taken[ids[i]] = true
    end
  end)
end

local function finish_done(groups)
  for _, group in ipairs(groups) do
    local slot, ids = unpack(group)
    local finished = 0
    in_chunks(#ids, function(first, last)
      finished = finished + redis.call('HDEL', leases_of(input.worker), unpack(ids, first, last))
    end)
    count_leases(slot, -finished)
    count('finished', finished)
    count('stale', #ids - finished)
  end
end

local function finish_dead(record, item)
  local lease, reason, detail, kind, status, foreign = unpack(item)
  local slot, priority, entry = parse_record(record)
  bury(slot, priority, entry, {reason = reason, detail = detail, error = kind, status = status,
    foreign = foreign, worker = input.worker, lease = lease}, input.dead_max)
  if foreign then count_foreign(1) end
  count('finished', 1)
end

-- Of an exchange's input all ends of leases.
local function finish_leases(order)
  local given_back = {}
  local function give_back(record) given_back[#given_back + 1] = record end

  -- To the front; but a second failure may be the request's own, so other requests are tried
  -- first.
  local function back_off(record, item)
    local _, request = unpack(item)
    local slot, priority, entry = parse_record(record)
    entry = string.sub(entry, 1, 1) .. request
    if slot_of(slot).fails < 2 then return give_back(record_of(slot, priority, entry)) end
    put(slot, priority, {entry}, 'fifo')
    count('released', 1)
  end

  -- A retry takes the place of what it is a retry of.
  local function retry(record, item)
    local _, priority, request, ms = unpack(item)
    local slot, entry = origin_of(record), '\0' .. request
    if ms > 0 then delay(record_of(slot, priority, entry), ms)
    else put(slot, priority, {entry}, order) end
    count('retried', 1)
    count('created', 1)
    count('finished', 1)
  end

  if input.done then finish_done(input.done) end
  if input.dead then take_leases(input.dead, finish_dead) end
  if input.released then take_leases(input.released, give_back) end
  if input.backed_off then take_leases(input.backed_off, back_off) end
  put_back(given_back)
  count('released', #given_back)
  if input.retried then take_leases(input.retried, retry) end
end
