-- Keys that are not of the type they must be, because something else has written to them.
--
-- A script that fails half-way is not rolled back. So it looks at the types of the keys that all
-- slots share before it writes (foreign_key()), and what concerns one slot cannot fail: entries
-- that cannot go to their queue wait in `delayed` and are tried again.
--
-- Include  shared/keys

-- The first of some keys that is of another type than it must be, else nil: {command that tells
-- how long the key is, key...}.
local function foreign_of(keys)
  for i = 1, #keys, 2 do
    if type(redis.pcall(keys[i], keys[i + 1])) == 'table' then return keys[i + 1] end
  end
end

-- The same of the keys that all slots share, and of `more`.
local function foreign_key(more)
  return foreign_of({'HLEN', META, 'HLEN', COUNTS, 'HLEN', BUSY, 'HLEN', LETTERS, 'ZCARD', READY,
    'ZCARD', DELAYED, 'ZCARD', WORKERS, 'ZCARD', DEAD}) or (more and foreign_of(more))
end

local function foreign_error(key)
  return redis.error_reply('ERR key ' .. key .. ' is not of the type it must be: delete it')
end

-- What was met in the place of the queue or the levels of a slot, for who asks to be told.
local key_in_the_way
