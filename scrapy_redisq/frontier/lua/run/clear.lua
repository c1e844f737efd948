-- Deletes what is left of a run, in bounded steps, so that the next one begins empty; or all of a
-- frontier (`reset`).
--
-- Input    all (also dead letters, the dupefilter, limits, what is known of slots and what people
--          have said about them), mark (only say so, so that all workers are told), force (although
--          workers are alive), before (us: nothing is done to a run that began then or later; 0:
--          to none that is open or complete, unless it is to be marked)
-- Reply    {status, number}: "in_use" with the number of live workers, "marked" with the time (us),
--          "more" to be called again, "done"
-- Cost     at most 100 slots, 1,000 queues and 100 workers a call, which are freed in the
--          background; the last call O(slots with requests in progress)
-- Retry    safe; interrupted, the state "resetting" makes the next one who joins carry on
-- Memory   the first write removes
-- Include  shared/workers shared/run_state shared/slots/state

local meta = hash_of(META)
local resets = meta.state == 'resetting'
if meta.state and not resets then
  if not input.mark and number_of(meta.began) >= input.before then return {'done', '0'} end
  if input.mark and not input.force and live_workers() > 0 then
    return {'in_use', integer(live_workers())}
  end
end
if meta.state and (input.all or not resets) then begin_reset(meta) end
if input.all then
  throw_away_seen(meta)
  redis.call('UNLINK', DEAD, LETTERS, ENDED, seen_base('recent:0'), seen_base('recent:1'))
end
if input.mark then -- a run that began by another clock is before the mark, too
  return {'marked', integer(math.max(NOW, number_of(meta.began) + 1))}
end

-- What other crawls know of slots is theirs.
local forgets_slots = input.all and not SHARED

-- A foreign key is deleted like what it stands in the place of.
local function members_of(key, most)
  local members = redis.pcall('ZRANGE', key, 0, most - 1)
  if not members.err then return members end
  redis.call('UNLINK', key)
  return {}
end

local queues_left, touched = 1000, 0

-- -> whether that is all of them
local function delete_queues(slot)
  local priorities = members_of(levels_of(slot), queues_left)
  for _, priority in ipairs(priorities) do redis.call('UNLINK', queue_of(slot, priority)) end
  queues_left = queues_left - #priorities
  if queues_left > 0 then
    redis.call('UNLINK', levels_of(slot))
    return true
  end
  redis.call('ZREMRANGEBYRANK', levels_of(slot), 0, #priorities - 1)
end

-- Calls f(member) for at most 100 members of a set, and removes them, until one is not `done`.
local function clear_members(key, f)
  for _, member in ipairs(members_of(key, 100)) do
    touched = touched + 1
    if f(member) == false then break end
    redis.call('ZREM', key, member)
  end
end

clear_members(READY, function(slot)
  if not delete_queues(slot) then return false end
  if forgets_slots then redis.call('DEL', slot_key(slot)) end
end)
clear_members(WORKERS, function(worker)
  if forgets_slots then
    for _, slot in ipairs(redis.call('HKEYS', tokens_key(worker))) do
      redis.call('DEL', slot_key(slot))
    end
    redis.call('UNLINK', tokens_key(worker))
  else
    return_tokens(worker)
  end
  redis.call('UNLINK', leases_of(worker), worker_key(worker))
end)
for _, key in ipairs(forgets_slots and {RULED, PAUSED} or {}) do
  clear_members(key, function(slot) redis.call('DEL', slot_key(slot)) end)
end
if touched > 0 then return {'more', integer(touched)} end
if forgets_slots then -- slots of which all requests were in progress
  for _, slot in ipairs(redis.call('HKEYS', BUSY)) do redis.call('DEL', slot_key(slot)) end
end
redis.call('UNLINK', DELAYED, BUSY, POST, POSTED, TAKEN)
if input.all then
  redis.call('UNLINK', COUNTS, LIMITS, ROBOTS, ROBOTS_UNTIL)
  if forgets_slots then redis.call('UNLINK', ASIDE) end
  for _, name in ipairs({'series:10', 'series:120', 'series:1800', 'marks', 'actions', 'history',
      'histories'}) do
    redis.call('UNLINK', past_key(name))
  end
end
return {'done', '0'}
