-- Dead letters become requests again, with deliveries counted from zero.
--
-- Input    ids {id...}, at most 100; entries {serialised request or false...}, what is to stand in
--          the place of theirs (retries counted from zero); reopen (an id may be on another shard than 0, which keeps
--          the state of the run)
-- Reply    {how many were requeued}
-- Cost     O(ids)
-- Retry    safe: an id is requeued once
-- Error    a foreign key is in the way of some, which stay dead; the others were requeued

local n, foreign = 0, nil
for i, id in ipairs(input.ids) do
  local letter = redis.call('HGET', LETTERS, id)
  local length = letter and struct.unpack('>I4', letter)
  local header = letter and cmsgpack.unpack(string.sub(letter, 5, 4 + length))
  local in_the_way = letter and foreign_queue({{header.slot, header.priority}})
  foreign = foreign or in_the_way
  if letter and not in_the_way then
    redis.call('HDEL', LETTERS, id)
    redis.call('ZREM', DEAD, id)
    local entry = input.entries[i] and '\0' .. input.entries[i]
      or with_deliveries(string.sub(letter, 5 + length), 0)
    put(header.slot, header.priority, {entry}, nil, true)
    n = n + 1
  end
end
count('dead', -n)
count('finished', -n)
if (n > 0 or input.reopen) and redis.call('HGET', META, 'state') == 'complete' then
  redis.call('HSET', META, 'state', 'open')
end
local counts = flush_counts()
if added > 0 then wake(counts) end
if foreign then return foreign_error(foreign) end
return {n}
