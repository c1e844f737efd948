-- Puts delayed entries that are due into their queues.
--
-- Include  shared/keys shared/bounds shared/clock shared/records shared/queues shared/dead

-- Entries that are taken at once, whatever their size.
local PORTION = 25

-- About 100 of them, or 4 MB. -> when the next one is due; nil if there is none
local function promote(order)
  local function first_due()
    return tonumber(redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2])
  end
  local due = first_due()
  if not due or due > NOW then return due end
  local promoted, bytes = 0, 0
  repeat
    local members = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', NOW, 'LIMIT', 0, PORTION)
    for _, member in ipairs(members) do
      local slot, priority, entry = parse_record(delayed_record(member))
      redis.call('ZREM', DELAYED, member)
      if slot then put(slot, priority, {entry}, order)
      else condemn('', member, DELAYED, input.dead_max, input.worker) end
      promoted, bytes = promoted + 1, bytes + #member
    end
  until #members < PORTION or promoted >= 100 or bytes >= MOST_BYTES
  return first_due()
end
