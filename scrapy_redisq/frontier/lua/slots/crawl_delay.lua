-- Sets the delay that a host's robots.txt asks for in the host's slot.
--
-- Input    run, host, slot, delay (us, 0: none)
-- Reply    1: the slot's delay has changed, and workers that hold requests of it are told; 0: it
--          has not; -1: the run is not this one
-- Cost     O(log slots)
-- Retry    safe
-- Memory   the first write removes: pages wait until this is done, and make no room before
-- Include  shared/slots/state

if redis.call('HGET', META, 'run') ~= input.run then return -1 end
local state = slot_of(input.slot)
local was, of_run = state.robots, input.run .. ' '
local by = of_run .. input.host
-- Of several hosts in one slot the longest delay counts; what the host itself said before, and what
-- was said in former runs, does not.
if input.delay >= was or state.robots_by == by
    or string.sub(state.robots_by, 1, #of_run) ~= of_run then
  state.robots, state.robots_by = input.delay, input.delay > 0 and by or ''
end
if state.robots == 0 and was == 0 then return 0 end
save_slot(input.slot, state) -- which also keeps it from being forgotten
redis.call('HSET', META, 'limited', 1)
if state.robots == was then return 0 end
look_again(input.slot)
announce(input.slot, 0)
return 1
