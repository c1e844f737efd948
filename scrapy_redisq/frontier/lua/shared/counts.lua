-- Changes to `counts` and `busy`.
--
-- finished = done + dead + dropped, and queued + delayed + leased + finished = created, unless
-- somebody else writes to these keys. So nothing that matters rests on counts: what is left is
-- looked at (shared/finished.lua). Whatever else than entries and records is found is a dead letter
-- ("foreign").
--
-- Include  shared/keys shared/texts shared/clock

-- Changes to `counts` and `busy` gather here and are written once, by flush_counts().
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
  local names, counts, changed = {}, {}, {}
  for name in pairs(count_changes) do names[#names + 1] = name end
  for i, stored in ipairs(redis.call('HMGET', COUNTS, unpack(names))) do
    local name, by = names[i], count_changes[names[i]]
    counts[name] = number_of(stored) + by
    if by ~= 0 then
      changed[#changed + 1] = name
      changed[#changed + 1] = integer(counts[name])
    end
  end
  if #changed > 0 then redis.call('HSET', COUNTS, unpack(changed)) end
  for slot, by in pairs(busy_changes) do
    -- Slots without leases leave no field behind.
    local busy = by == 0 or redis.pcall('HINCRBY', BUSY, slot, by)
    if type(busy) == 'table' or (by ~= 0 and busy <= 0) then redis.call('HDEL', BUSY, slot) end
  end
  count_changes, busy_changes = {}, {}
  return counts
end

-- The next number of those that `name` counts. One that is none, or too large for Lua to tell from
-- the next, is replaced by the time.
local function next_number(name)
  local number = redis.pcall('HINCRBY', COUNTS, name, 1)
  if type(number) == 'table' or number >= 2 ^ 53 then
    number = NOW
    redis.call('HSET', COUNTS, name, integer(number))
  end
  return integer(number)
end
