-- Dead letters become requests again, with deliveries counted from zero.
--
-- Input    letters {{id, SHA-1 of the letter in hexadecimal digits, serialised request (in the
--          place of the letter's, with retries counted from zero) or false}... (at most 100)}
-- Reply    {how many were requeued}; {-1} if the shard must be opened first, see run/open.lua
-- Cost     O(bytes of the letters)
-- Retry    safe: an id is requeued once
-- Include  shared/keys shared/texts shared/counts shared/records shared/queues shared/workers

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

local meta = redis.call('HMGET', META, 'state', 'sealed', 'run')
if not meta[3] then return {0} end
if meta[2] then return {-1} end
local n = 0
for _, item in ipairs(input.letters) do
  local id, digest, given = unpack(item)
  local letter = redis.call('HGET', LETTERS, id)
  -- Since it was read there may have been a reset, and another letter under its id.
  if letter and redis.sha1hex(letter) ~= digest then letter = nil end
  local slot, priority, entry, header = parse_letter(letter or '')
  -- Of what could not be kept at all there is only the reason.
  if slot and entry ~= '\0' then
    if header.foreign then
      count('foreign', -1)
      -- What could not be read will be found to be foreign once more; the rest are requests now.
      if header.reason == 'undecodable' then count('created', -1) end
    end
    redis.call('HDEL', LETTERS, id)
    redis.call('ZREM', DEAD, id)
    entry = given and '\0' .. given or with_deliveries(entry, 0)
    put(slot, priority, {entry}, nil, true)
    n = n + 1
  end
end
count('dead', -n)
count('finished', -n)
count('requeued', n)
if n > 0 and meta[1] == 'complete' then
  redis.call('HSET', META, 'state', 'open')
end
local counts = flush_counts()
if added > 0 then wake(counts) end
return {n}
