-- A person's rule for a slot, which holds for all workers at once. A slot that is resumed is no
-- longer paused, parked or set aside.
--
-- Input    slot, paused (true, or false to resume it; nil: as it is), own (a limit as
--          shared/slots/limits.lua has it, in the place of those of the settings, with "-" for each
--          part that stays; '': those of the settings; nil: as it is)
-- Reply    1; 0 if there is no frontier
-- Cost     O(1)
-- Retry    safe
-- Memory   the first writes remove
-- Include  shared/counts shared/workers shared/slots/state shared/slots/limits

if redis.call('EXISTS', META) == 0 then return 0 end
local slot = input.slot
local state = slot_of(slot)
redis.call('ZREM', RULED, slot)
redis.call('ZREM', PAUSED, slot)
if input.own then
  local limit, part = state.limit, 0
  local held = {limit.delay, limit.interval, limit.burst, limit.concurrency}
  set_limit(slot, state, (string.gsub(input.own, '%S+', function(given)
    part = part + 1
    if given == '-' then return integer(held[part]) end
  end)))
end
if input.paused ~= nil then
  redis.call('ZREM', ASIDE, slot) -- such a slot would let the crawl end
  state.held = input.paused and 1 or 0
end
if input.paused == false then
  state.parked, state.fails = 0, 0
  -- What is being downloaded says nothing new when it fails.
  if state.failed > 0 then state.failed = NOW end
end
if state.own ~= '' then redis.call('ZADD', RULED, NOW, slot) end
if state.held == 1 then redis.call('ZADD', PAUSED, NOW, slot) end
redis.call('HSET', META, 'limited', 1)
-- The turn of a worker that is gone may have been meant for long after this.
state.ends = math.min(state.ends, first_start(state) + TURN)
save_slot(slot, state)
look_again(slot, state.held == 1 and NOW + HOUR or nil)
announce(slot, 0)
wake(flush_counts())
return 1
