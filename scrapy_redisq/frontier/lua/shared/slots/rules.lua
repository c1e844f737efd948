-- What a person says about a slot.
--
-- Include  shared/keys shared/clock shared/counts shared/workers shared/slots/state

-- Keeps what a person has said about a slot, and has all workers look at it at once.
local function rule(slot, state)
  -- First writes that remove: works at maxmemory too.
  redis.call('ZREM', RULED, slot)
  redis.call('ZREM', PAUSED, slot)
  if state.own ~= '' then redis.call('ZADD', RULED, NOW, slot) end
  if state.held == 1 then redis.call('ZADD', PAUSED, NOW, slot) end
  redis.call('HSET', META, 'limited', 1)
  -- The turn of a worker that is gone may have been meant for long after this.
  state.ends = math.min(state.ends, first_start(state) + TURN)
  save_slot(slot, state)
  look_again(slot, state.held == 1 and NOW + PROBE or first_start(state) - EARLY)
  announce(slot, 0)
  wake(flush_counts())
end
