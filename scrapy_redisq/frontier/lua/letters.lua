-- Reads dead letters, newest first.
--
-- Input    first, last (ranks)
-- Reply    {id, letter, id, letter...}; a letter is 4 bytes length of header, header, entry
-- Cost     O(letters read); reads only
local answer = {}
for _, id in ipairs(redis.call('ZREVRANGE', DEAD, input.first, input.last)) do
  answer[#answer + 1] = id
  answer[#answer + 1] = redis.call('HGET', LETTERS, id)
end
return answer
