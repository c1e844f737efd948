-- A person gives up a slot's requests: first those that are delayed, then those in its queues.
-- They count as finished. Leases of workers go on.
--
-- Input    slot, record (if given: of its delayed requests this one alone, and no queue), cursor
--          ('0' at first, then what the last call replied)
-- Reply    {how many were dropped, cursor; '' when nothing is left}
-- Cost     O(1) for each of at most 100 queues, or about 100 delayed requests looked at
-- Retry    safe
-- Include  shared/counts shared/workers

local slot, dropped, cursor = input.slot, 0, ''
if input.cursor ~= 'queues' then
  local found = redis.call('ZSCAN', DELAYED, input.cursor, 'COUNT', 100)
  for i = 1, #found[2], 2 do
    local member = found[2][i]
    local record = delayed_record(member)
    if origin_of(record) == slot and (not input.record or record == input.record) then
      dropped = dropped + redis.call('ZREM', DELAYED, member)
    end
  end
  cursor = found[1] ~= '0' and found[1] or input.record and '' or 'queues'
else
  local levels = redis.call('ZRANGE', levels_of(slot), 0, 99)
  for _, priority in ipairs(levels) do
    local queue = queue_of(slot, priority)
    dropped = dropped + redis.call('LLEN', queue)
    redis.call('UNLINK', queue)
    redis.call('ZREM', levels_of(slot), priority)
  end
  if redis.call('EXISTS', levels_of(slot)) == 1 then cursor = 'queues'
  else redis.call('ZREM', READY, slot) end
end
count('finished', dropped)
count('dropped', dropped)
local counts = flush_counts()
if dropped > 0 and all_finished() then wake(counts, true) end
return {dropped, cursor}
