-- A person wants a slot to go on at once: it is neither paused nor parked nor set aside any more.
--
-- Input    slot
-- Reply    1; 0 if there is no frontier
-- Cost     O(1)
-- Retry    safe
-- Error    another key is in the place of one that all slots share; nothing was changed
-- Include  shared/keys shared/clock shared/foreign shared/slots/state shared/slots/rules

local foreign = foreign_key_of_slots()
if foreign then return foreign_error(foreign) end
if redis.call('EXISTS', META) == 0 then return 0 end
local state = slot_of(input.slot)
redis.call('ZREM', ASIDE, input.slot)
state.held, state.parked, state.pause, state.fails, state.trouble = 0, 0, 0, 0, 0
-- What is being downloaded says nothing new when it fails.
if state.failed > 0 then state.failed = NOW end
rule(input.slot, state)
return 1
