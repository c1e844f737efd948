-- Deletes dead letters. How many requests died remains counted.
--
-- Input    ids {id...}, at most 100
-- Reply    how many were deleted
-- Cost     O(ids)
-- Retry    safe

local foreign = foreign_of({'HLEN', LETTERS, 'ZCARD', DEAD})
if foreign then return foreign_error(foreign) end
local n = 0
for _, id in ipairs(input.ids) do
  redis.call('ZREM', DEAD, id)
  n = n + redis.call('HDEL', LETTERS, id)
end
return n
