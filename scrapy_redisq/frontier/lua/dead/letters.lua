-- Reads dead letters, newest first, or those named.
--
-- Input    ids {id...}, or most (how many of the newest), id, number (both of the letter behind
--          which to go on)
-- Reply    {number of the last, id, letter, id, letter...}; a letter is 4 bytes length of header,
--          header, entry (false: there is none); not all of them if they have more than about 4 MB
-- Cost     O(letters read); reads only

local ids = input.ids
if not ids then
  local first = 0
  if input.id then
    -- By its rank as it is now. If it is gone, those that were before it tell where it was.
    local rank = redis.call('ZREVRANK', DEAD, input.id)
    first = rank and rank + 1 or redis.call('ZCOUNT', DEAD, input.number, '+inf')
  end
  ids = redis.call('ZREVRANGE', DEAD, first, first + input.most - 1)
end
local answer, bytes = {''}, 0
for _, id in ipairs(ids) do
  if bytes >= MOST_BYTES then break end
  local letter = redis.call('HGET', LETTERS, id)
  answer[#answer + 1], answer[#answer + 2] = id, letter
  bytes = bytes + #(letter or '')
end
if #answer > 1 then answer[1] = redis.call('ZSCORE', DEAD, answer[#answer - 1]) end
return answer
