-- Changes to `counts` and `busy`, which gather here and are written once.
--
-- finished = done + dead + dropped, and queued + delayed + leased + finished = created, unless
-- another program writes to these keys. So all_finished() in shared/workers.lua looks at keys, not
-- at counts. A run that has nothing left, and more created than finished, has lost requests.
--

local count_changes, busy_changes = {}, {}
local function count(name, by) count_changes[name] = (count_changes[name] or 0) + by end

-- Leases of a slot begin, or end if n is negative.
local function count_leases(slot, n)
  busy_changes[slot] = (busy_changes[slot] or 0) + n
  count('leased', n)
end

-- -> the counts as they are now {name = number}: created, finished, starting, waiting, dead,
-- leased, posted, and all that have changed
local function flush_counts()
  for _, name in ipairs({'created', 'finished', 'starting', 'waiting', 'dead', 'leased',
      'posted'}) do
    count(name, 0)
  end
  local names, counts, changed, changes, busy = {}, {}, {}, count_changes, busy_changes
  count_changes, busy_changes = {}, {} -- once, also if a key is damaged
  for name in pairs(changes) do names[#names + 1] = name end
  for i, stored in ipairs(redis.call('HMGET', COUNTS, unpack(names))) do
    local name, by = names[i], changes[names[i]]
    counts[name] = number_of(stored) + by
    if by ~= 0 then
      changed[#changed + 1] = name
      changed[#changed + 1] = integer(counts[name])
    end
  end
  if #changed > 0 then redis.call('HSET', COUNTS, unpack(changed)) end
  for slot, by in pairs(busy) do
    -- Slots without leases leave no field behind.
    if by ~= 0 and redis.call('HINCRBY', BUSY, slot, by) <= 0 then
      redis.call('HDEL', BUSY, slot)
    end
  end
  return counts
end
at_failure = flush_counts

-- The next number of those that `name` counts.
local function next_number(name) return integer(redis.call('HINCRBY', COUNTS, name, 1)) end
