-- A person pauses a slot: nothing of it is started before it is resumed.
--
-- Input    slot
-- Reply    1; 0 if there is no frontier
-- Cost     O(1)
-- Retry    safe
-- Error    another key is in the place of one that all slots share; nothing was changed
-- Include  shared/keys shared/foreign shared/slots/state shared/slots/rules

local foreign = foreign_key_of_slots()
if foreign then return foreign_error(foreign) end
if redis.call('EXISTS', META) == 0 then return 0 end
local state = slot_of(input.slot)
-- What is set aside would let the crawl end.
redis.call('ZREM', ASIDE, input.slot)
state.held = 1
rule(input.slot, state)
return 1
