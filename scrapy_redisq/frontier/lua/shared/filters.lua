-- The filters of shared/seen/ have this in common. Each keeps its members in keys that begin with a
-- `base`, and numbers of its own in a hash of that name. Each returns
--
--   add(base, params, fingerprints)  -> for each 1: it was new, or 0; a second call answers 0
--   has(base, params, fingerprints)  -> for each 1: it is there, or 0; nothing is recorded
--   status(base, params)             -> {how many there are, how many fit before it grows, and as
--                                       a text the share of new ones that is taken for known}
--   keys(base)                       -> a function next_key, see drop_keys()

-- Deletes the keys of a filter, at most `limit` a call. -> is that all of it?
-- next_key(cursor) -> the key at this place and the next place, nil behind the last. A cursor is a
-- number, the first one 0. Most filters have more places than keys.
local function drop_keys(filter, base, limit)
  local known, next_key = pcall(filter.keys, base) -- of damaged numbers the keys stay
  local cursor, deleted = number_of(redis.call('HGET', base, 'dropped')), 0
  for _ = 1, 10 * limit do
    local key, following
    if known then key, following = next_key(cursor) end
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
