-- Deletes dupefilters that no run uses any more, a bounded number of keys a call.
--
-- Input    backend (that this script has), all (the end of a reset: when the last one is
--          deleted so is meta, after which nothing is left; not if a run has begun meanwhile),
--          forget_shards (a run, on shard 0: shards that only former runs had are deleted now)
-- Reply    the backend of the next filter to delete, or false when nothing is left
-- Cost     at most about 200 keys a call
-- Retry    safe
-- Include  dupefilter=shared/seen/BACKEND

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

local function next_filter()
  return string.match(redis.call('LINDEX', TRASH, 0) or '', '^(%S+) (.+)$')
end
local backend, base = next_filter()
if backend == input.backend and drop_keys(dupefilter(), seen_base(base), CHUNK) then
  redis.call('LPOP', TRASH)
  backend = next_filter()
end
if not backend and input.all and redis.call('HGET', META, 'state') == 'resetting' then
  redis.call('DEL', META)
end
if input.forget_shards and redis.call('HGET', META, 'run') == input.forget_shards then
  redis.call('HDEL', META, 'shards')
end
return backend
