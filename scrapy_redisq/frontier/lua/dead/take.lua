-- Takes out dead letters: they become requests again, with deliveries counted from zero, or are
-- deleted for good. How many requests died remains counted then.
--
-- Input    letters {{id, SHA-1 of the letter in hexadecimal digits, serialised request (in the
--          place of the letter's, with retries counted from zero) or false}... (at most 100)},
--          requeue (false: delete them)
-- Reply    for each 1 if it was requeued or deleted; 0 if it is not there, or another one under its
--          id, or nothing of its request is kept; {-1} if the shard must be opened first
-- Cost     O(bytes of the letters)
-- Retry    safe: an id is requeued once
-- Memory   the first write removes
-- Include  shared/counts shared/queues shared/workers

-- -> slot, priority (as text), entry, header of a dead letter; nil if it is none
local function parse_letter(letter)
  if #letter < 4 then return end
  local length = struct.unpack('>I4', letter)
  local known, header = pcall(cmsgpack.unpack, string.sub(letter, 5, 4 + length))
  if not known or type(header) ~= 'table' then return end
  local slot, priority = header.slot, tostring(header.priority)
  if type(slot) == 'string' and is_text(slot) and is_priority(priority) then
    return slot, priority, string.sub(letter, 5 + length), header
  end
end

local function remove(id)
  redis.call('HDEL', LETTERS, id)
  redis.call('ZREM', DEAD, id)
  return 1
end

-- -> 1, or 0 where nothing of the request is kept: of what could not be there is only the reason
local function requeue(id, letter, given)
  local slot, priority, entry, header = parse_letter(letter)
  if not slot or entry == '\0' then return 0 end
  if header.foreign then
    count('foreign', -1)
    -- What could not be read will be found to be foreign once more; the rest are requests now.
    if header.reason == 'undecodable' then count('created', -1) end
  end
  remove(id)
  -- Before it is put: where its queue is damaged, it is missing at the end.
  count('dead', -1)
  count('finished', -1)
  count('requeued', 1)
  put(slot, priority, {given and '\0' .. given or with_deliveries(entry, 0)}, nil, true)
  return 1
end

local meta, answer = fields_of(META, 'state', 'sealed', 'run'), {}
if input.requeue and not meta.run then return answer end
if input.requeue and meta.sealed then return {-1} end
for i, item in ipairs(input.letters) do
  local id, digest, given = unpack(item)
  local letter = redis.call('HGET', LETTERS, id)
  -- Since it was read there may have been a reset, and another letter under its id.
  if not letter or redis.sha1hex(letter) ~= digest then answer[i] = 0
  elseif input.requeue then answer[i] = requeue(id, letter, given)
  else answer[i] = remove(id) end
end
if added > 0 then
  if meta.state == 'complete' then redis.call('HSET', META, 'state', 'open') end
  wake(flush_counts())
end
return answer
