-- Deletes dupefilters that no run uses any more, a bounded number of keys a call.
--
-- Input    backend (of the seen_drop in this script), all (the frontier's own filter too, and
--          then its meta: after this nothing is left)
-- Reply    the backend of the next filter to delete, or false when nothing is left
-- Cost     at most about 200 keys a call
-- Retry    safe

if input.all and redis.call('EXISTS', META) == 1 then
  local meta = redis.call('HMGET', META, 'config:backend', 'generation', 'run')
  redis.call('DEL', META)
  redis.call('UNLINK', seen_base('recent:0'), seen_base('recent:1'))
  redis.call('RPUSH', TRASH, meta[1] .. ' ' .. meta[2], 'exact ' .. meta[3] .. '.starts')
end
local function next_backend()
  local item = redis.call('LINDEX', TRASH, 0)
  if not item then return false end
  return string.match(item, '^(%S+) (%S+)$')
end
local backend, generation = next_backend()
if backend == input.backend and seen_drop(seen_base(generation), CHUNK) then
  redis.call('LPOP', TRASH)
end
return (next_backend())
