-- A person gives a slot a limit, in the place of those of the settings.
--
-- Input    slot, own (the limit as shared/slots/state.lua has it, with "-" for each part that stays
--          as it is; '': those of the settings hold again)
-- Reply    1; 0 if there is no frontier
-- Cost     O(1)
-- Retry    safe
-- Error    another key is in the place of one that all slots share; nothing was changed
-- Include  shared/keys shared/texts shared/foreign shared/slots/state shared/slots/rules

local foreign = foreign_key_of_slots()
if foreign then return foreign_error(foreign) end
if redis.call('EXISTS', META) == 0 then return 0 end
local state = slot_of(input.slot)
local limit, part = state.limit, 0
local held = {limit.delay, limit.interval, limit.burst, limit.concurrency}
set_limit(input.slot, state, (string.gsub(input.own, '%S+', function(given)
  part = part + 1
  if given == '-' then return integer(held[part]) end
end)))
rule(input.slot, state)
return 1
