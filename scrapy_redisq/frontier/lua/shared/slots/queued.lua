-- How many requests of a slot are queued.
--
-- Include  shared/keys

-- The most urgent ones; none where a foreign key is in their place.
local function priorities_of(slot, most)
  return redis.pcall('ZRANGE', levels_of(slot), 0, most - 1)
end

local function length_of(slot, priority)
  return tonumber(redis.pcall('LLEN', queue_of(slot, priority))) or 0 -- a foreign key has none
end

-- At least, if the slot has requests of more than `most` priorities: those that are not looked at
-- have a request each.
local function queued(slot, most)
  local priorities = priorities_of(slot, most)
  local sum = #priorities == most and redis.call('ZCARD', levels_of(slot)) - most or 0
  for _, priority in ipairs(priorities) do sum = sum + length_of(slot, priority) end
  return sum
end
