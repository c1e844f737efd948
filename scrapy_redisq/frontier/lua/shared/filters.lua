-- What the filters of shared/seen/ have in common: each keeps what was seen in keys that begin with
-- a `base`, and numbers of its own in a hash of that name.
--
-- Include  shared/texts

-- What another hand has written in the place of a number makes that key a foreign one.
local function foreign_number() error('WRONGTYPE a number of another hand', 0) end

-- A number of a filter, `default` if it is not there. Loops may go by it.
local function number_within(text, default, least, most)
  local number = tonumber(text or default)
  return number and number >= least and number <= most and number or foreign_number()
end

-- Raises the error of an answer that a command cannot give: a request that is taken for known by
-- mistake is lost.
local function wrong_answer(answer, command, key)
  local said = type(answer) == 'table' and answer.err or tostring(answer)
  error('ERR ' .. command .. ' ' .. key .. ' has answered: ' .. said, 0)
end

-- Deletes the keys of a filter, at most `limit` a call. -> is that all of it?
-- next_key(cursor) -> the key at this place and the next place, nil behind the last. A cursor is a
-- number, the first one 0. Most filters have more places than keys.
local function drop_keys(base, limit, next_key)
  local cursor, deleted = math.max(0, number_of(redis.call('HGET', base, 'dropped'))), 0
  for _ = 1, 10 * limit do
    local key, following = next_key(cursor)
    if not key then
      redis.call('UNLINK', base)
      return true
    end
    cursor, deleted = following, deleted + redis.call('UNLINK', key)
    if deleted >= limit then break end
  end
  redis.call('HSET', base, 'dropped', cursor)
  return false
end

-- What `status` answers: {count, capacity, fill, expected error rate}
local function status_of(count, capacity, expected)
  return {count, capacity, string.format('%.6g', count / capacity),
    string.format('%.6g', expected)}
end
