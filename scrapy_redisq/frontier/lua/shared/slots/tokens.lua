-- Tokens of slots with a concurrency: who has how many.
--
-- Include  shared/keys shared/texts shared/clock shared/slots/state

local function tokens_of(worker, slot)
  return math.max(0, number_of(redis.pcall('HGET', tokens_key(worker), slot)))
end

-- Sets how many tokens a worker has of a slot.
local function set_tokens(worker, slot, state, n)
  local had = tokens_of(worker, slot)
  if n == had then return end
  if n == 0 then redis.call('HDEL', tokens_key(worker), slot)
  else redis.call('HSET', tokens_key(worker), slot, n) end
  state.out = math.max(0, state.out + n - had)
  if n < had then look_again(slot, first_start(state) - EARLY) end
end

-- A worker is gone, and so are its downloads.
local function return_tokens(worker)
  local held = redis.pcall('HGETALL', tokens_key(worker))
  redis.call('DEL', tokens_key(worker))
  for i = 1, #held, 2 do
    local slot, state = held[i], slot_of(held[i])
    state.out = math.max(0, state.out - number_of(held[i + 1]))
    save_slot(slot, state)
    look_again(slot, NOW)
  end
end
