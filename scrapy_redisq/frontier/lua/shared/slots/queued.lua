-- How many requests of a slot are queued.
--
-- Include  shared/keys

-- At least, if the slot has requests of more than `most` priorities: those that are not looked at
-- have a request each.
local function queued(slot, most)
  local levels = levels_of(slot)
  local priorities = redis.pcall('ZRANGE', levels, 0, most - 1)
  local sum = #priorities == most and redis.call('ZCARD', levels) - most or 0
  for _, priority in ipairs(priorities) do
    local length = redis.pcall('LLEN', queue_of(slot, priority))
    sum = sum + (tonumber(length) or 0) -- a foreign key has none
  end
  return sum
end
