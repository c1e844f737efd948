-- Slots that are set aside: they are tried again when a crawl is started again, and a run may end
-- without them.
--
-- Include  shared/keys shared/clock shared/texts shared/slots/state

-- Slots that were set aside before `since` are tried again, a bounded number at a time; `retry` in
-- meta is there as long as there are more.
local function retry_aside(since)
  local aside = redis.call('ZRANGEBYSCORE', ASIDE, '-inf', since, 'LIMIT', 0, 100)
  for _, slot in ipairs(aside) do
    redis.call('ZREM', ASIDE, slot)
    redis.pcall('HDEL', slot_key(slot), 'parked', 'fails')
    look_again(slot, NOW)
  end
  if #aside < 100 then redis.call('HDEL', META, 'retry') end
end

-- Whether slots have entries or leases that are not set aside. Slots may also be set aside and have
-- neither, so that numbers say nothing.
local function any_but_aside()
  if redis.call('HLEN', BUSY) > 1000 then return true end
  for _, slots in ipairs({redis.call('ZREVRANGE', READY, 0, 999), redis.call('HKEYS', BUSY)}) do
    for _, slot in ipairs(slots) do
      if not redis.call('ZSCORE', ASIDE, slot) then return true end
    end
  end
end

-- -> seconds for which all that is left has been in slots that are set aside; -1: it is not.
-- `since` is what this keeps as `stuck` in meta.
local function stuck_for(counts, since)
  local aside = redis.call('ZCARD', ASIDE)
  since = since and tonumber(since)
  if aside == 0 or redis.call('EXISTS', READY) + redis.call('EXISTS', BUSY) == 0
      or counts.starting > 0 or redis.call('ZCARD', DELAYED) > 0
      or redis.call('ZCARD', READY) > aside or any_but_aside() then
    if since then redis.call('HDEL', META, 'stuck') end
    return -1
  end
  if since then return math.floor((NOW - since) / 1000000) end
  redis.call('HSET', META, 'stuck', integer(NOW))
  return 0
end
