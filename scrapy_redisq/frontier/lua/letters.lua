-- Reads dead letters, newest first, or those named.
--
-- Input    first, last (ranks), or ids {id...}
-- Reply    {id, letter, id, letter...}; a letter is 4 bytes length of header, header, entry
-- Cost     O(letters read); reads only
local answer = {}
for _, id in ipairs(input.ids or redis.call('ZREVRANGE', DEAD, input.first, input.last)) do
  local letter = redis.call('HGET', LETTERS, id)
  if letter then
    answer[#answer + 1] = id
    answer[#answer + 1] = letter
  end
end
return answer
