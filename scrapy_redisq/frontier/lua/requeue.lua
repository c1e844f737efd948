-- Dead letters become requests again, with deliveries counted from zero.
--
-- Input    ids {id...}, at most 100; reopen (an id may be on another shard than 0, which keeps
--          the state of the run)
-- Reply    {how many were requeued}
-- Cost     O(ids)
-- Retry    safe: an id is requeued once

local n = 0
for _, id in ipairs(input.ids) do
  local letter = redis.call('HGET', LETTERS, id)
  if letter then
    redis.call('HDEL', LETTERS, id)
    redis.call('ZREM', DEAD, id)
    local length = struct.unpack('>I4', letter)
    local header = cmsgpack.unpack(string.sub(letter, 5, 4 + length))
    local entry = with_deliveries(string.sub(letter, 5 + length), 0)
    put(header.slot, header.priority, {entry}, nil, true)
    n = n + 1
  end
end
count('dead', -n)
count('finished', -n)
if (n > 0 or input.reopen) and redis.call('HGET', META, 'state') == 'complete' then
  redis.call('HSET', META, 'state', 'open')
end
flush_counts()
if added > 0 then wake() end
return {n}
