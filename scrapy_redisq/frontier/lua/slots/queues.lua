-- What waits of a slot, by priority, for people.
--
-- Input    slot
-- Reply    {priority, how many wait, ...}, the most urgent first, at most 100 of them
-- Cost     at most 100 queues; reads only
-- Include  shared/keys

local reply = {}
local priorities = redis.pcall('ZRANGE', levels_of(input.slot), 0, 99)
for _, priority in ipairs(priorities) do -- none where a foreign key is in its place
  local length = tonumber(redis.pcall('LLEN', queue_of(input.slot, priority)))
  reply[#reply + 1], reply[#reply + 2] = priority, length or 0
end
return reply
