-- Deletes dead letters. How many requests died remains counted.
--
-- Input    letters {{id, SHA-1 of the letter in hexadecimal digits}... (at most 100)}
-- Reply    {1 if it was deleted, 0 if it is not there, or another one under its id...}
-- Cost     O(bytes of the letters)
-- Retry    safe
-- Include  shared/keys

local answer = {}
for i, item in ipairs(input.letters) do
  local letter = redis.call('HGET', LETTERS, item[1])
  answer[i] = 0
  if letter and redis.sha1hex(letter) == item[2] then
    redis.call('ZREM', DEAD, item[1])
    answer[i] = redis.call('HDEL', LETTERS, item[1])
  end
end
return answer
