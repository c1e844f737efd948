-- Looks for requests of a slot that hold some text, a portion at a time, for people. A request that
-- moves meanwhile may be missed.
--
-- Input    slot ('': all, but of queues), text ('': any), place (leases, delayed, letters or queues), cursor ('' at first,
--          then what the last call replied)
-- Reply    {cursor, '' at the end and 'refused' where it cannot be looked; how many were looked at;
--          then of each that was found
--             leases   worker, lease, record
--             delayed  '', us until it is due, record
--             letters  '', id, letter
--             queues   priority, how many are before it, entry}
-- Cost     about 300 requests, or 4 MB of them; reads only

local BATCH, MOST = 100, 300
local place, slot, text = input.place, input.slot, input.text
local answer, looked, bytes = {'', 0}, 0, 0

-- Takes one in, if it is what is looked for.
local function take(who, id, data, is_record)
  looked, bytes = looked + 1, bytes + #data
  if text ~= '' and not string.find(data, text, 1, true) then return end
  if is_record and slot ~= '' and origin_of(data) ~= slot then return end
  for _, value in ipairs({who, id, data}) do answer[#answer + 1] = value end
end

-- Looks at a scanned key from a cursor on, with f(member, value). -> the next cursor
local function scan(command, key, cursor, f)
  local part = redis.call(command, key, cursor, 'COUNT', BATCH)
  for i = 1, #part[2], 2 do f(part[2][i], part[2][i + 1]) end
  return part[1]
end

-- "A B": the rank of what is looked through, a worker or a level, and the place in it.
local rank, at = string.match(input.cursor, '^(%d+) (%d+)$')
rank, at = tonumber(rank or 0), at or '0'

-- One step in a place -> the next place in it, '0': that was all of it; nil: there is no such rank.
local steps = {}

function steps.leases()
  local worker = redis.call('ZRANGE', WORKERS, rank, rank)[1]
  if not worker then return end
  return scan('HSCAN', leases_of(worker), at, function(id, record)
    take(worker, id, record, true)
  end)
end

function steps.delayed()
  if rank > 0 then return end
  return scan('ZSCAN', DELAYED, at, function(member, due)
    local left = math.max(0, number_of(due) - NOW)
    take('', integer(left), delayed_record(member), true)
  end)
end

function steps.letters()
  if rank > 0 then return end
  return scan('HSCAN', LETTERS, at, function(id, letter) take('', id, letter) end)
end

-- Redis 6 may crash at the LRANGE, see pop() in shared/claim.lua.
function steps.queues()
  local priority = redis.call('ZRANGE', levels_of(slot), rank, rank)[1]
  if not priority then return end
  local first = tonumber(at)
  local entries = redis.pcall('LRANGE', queue_of(slot, priority), first, first + BATCH - 1)
  if entries.err then return 'refused' end -- the user may not look
  for i = 1, #entries do take(priority, integer(first + i - 1), entries[i]) end
  return #entries < BATCH and '0' or integer(first + BATCH)
end

if place == 'queues' and not redis.REDIS_VERSION_NUM then return {'refused', 0} end
repeat
  at = steps[place]()
  if at == '0' then rank, looked = rank + 1, looked + 1 end -- an empty one costs something
until not at or at == 'refused' or looked >= MOST or bytes >= MOST_BYTES
answer[1] = at == 'refused' and at or at and integer(rank) .. ' ' .. at or ''
answer[2] = looked
return answer
