-- Looks for requests of a slot that hold some text, a portion at a time, for people. What moves
-- meanwhile may be missed.
--
-- Input    slot, text ('': any), place (leases, delayed, letters or queues), cursor ('' at first,
--          then what the last call replied)
-- Reply    {cursor, '' at the end and 'refused' where it cannot be looked; how many were looked at;
--          then of each that was found
--             leases   worker, lease, record
--             delayed  '', us until it is due, record
--             letters  '', id, letter
--             queues   priority, how many are before it, entry}
-- Cost     about 300 requests, or 4 MB of them; reads only
-- Include  shared/keys shared/texts shared/bounds shared/clock shared/records

local PORTION, MOST = 100, 300
local place, slot, text = input.place, input.slot, input.text
local found, looked, bytes = {}, 0, 0

-- Takes one in, if it is what is looked for.
local function take(who, id, data, is_record)
  looked, bytes = looked + 1, bytes + #data
  if text ~= '' and not string.find(data, text, 1, true) then return end
  if is_record and origin_of(data) ~= slot then return end
  found[#found + 1], found[#found + 2], found[#found + 3] = who, id, data
end

local function is_enough() return looked >= MOST or bytes >= MOST_BYTES end

-- "A B", of which the first is '0' at first.
local first, second = string.match(input.cursor, '^(%d+) (%d+)$')
first, second = tonumber(first or 0), second or '0'
local cursor = ''

if place == 'leases' then
  -- The rank of a worker, and the cursor in its leases.
  local worker = redis.call('ZRANGE', WORKERS, first, first)[1]
  while worker and not is_enough() do
    local leases = redis.call('HSCAN', leases_of(worker), second, 'COUNT', PORTION)
    local fields = leases[2]
    for i = 1, #fields, 2 do take(worker, fields[i], fields[i + 1], true) end
    second = leases[1]
    if second == '0' then
      first, looked = first + 1, looked + 1 -- a worker without leases costs something, too
      worker = redis.call('ZRANGE', WORKERS, first, first)[1]
    end
  end
  if worker then cursor = integer(first) .. ' ' .. second end
elseif place == 'queues' then
  -- The rank of a level, and how many of its queue were looked at. Redis 6 may crash at the LRANGE.
  if not redis.REDIS_VERSION_NUM then return {'refused', 0} end
  second = tonumber(second)
  local priority = redis.call('ZRANGE', levels_of(slot), first, first)[1]
  while priority and not is_enough() do
    local entries = redis.pcall('LRANGE', queue_of(slot, priority), second, second + PORTION - 1)
    if entries.err and string.find(string.lower(entries.err), 'perm', 1, true) then
      return {'refused', looked}
    end
    for i = 1, #entries do take(priority, integer(second + i - 1), entries[i]) end
    second = second + PORTION
    if #entries < PORTION then
      first, second, looked = first + 1, 0, looked + 1
      priority = redis.call('ZRANGE', levels_of(slot), first, first)[1]
    end
  end
  if priority then cursor = integer(first) .. ' ' .. integer(second) end
else
  local key = place == 'delayed' and DELAYED or LETTERS
  repeat
    local scan = place == 'delayed' and 'ZSCAN' or 'HSCAN'
    local part = redis.call(scan, key, second, 'COUNT', PORTION)
    local members = part[2]
    for i = 1, #members, 2 do
      if place == 'delayed' then
        local due = math.max(0, number_of(members[i + 1]) - NOW)
        take('', integer(due), delayed_record(members[i]), true)
      else
        take('', members[i], members[i + 1])
      end
    end
    second = part[1]
  until second == '0' or is_enough()
  if second ~= '0' then cursor = '0 ' .. second end
end
local answer = {cursor, looked}
for i = 1, #found do answer[i + 2] = found[i] end
return answer
