-- Reads dead letters, newest first, or those named.
--
-- Input    first, last (ranks), or ids {id...}
-- Reply    {id, letter, id, letter...}; a letter is 4 bytes length of header, header, entry
--          (false: there is none); not all of them if they have more than about 4 MB
-- Cost     O(letters read); reads only
local foreign = foreign_of({'HLEN', LETTERS, 'ZCARD', DEAD})
if foreign then return foreign_error(foreign) end
local answer, bytes = {}, 0
for _, id in ipairs(input.ids or redis.call('ZREVRANGE', DEAD, input.first, input.last)) do
  if bytes >= MOST_BYTES then break end
  local letter = redis.call('HGET', LETTERS, id)
  answer[#answer + 1] = id
  answer[#answer + 1] = letter
  bytes = bytes + #(letter or '')
end
return answer
