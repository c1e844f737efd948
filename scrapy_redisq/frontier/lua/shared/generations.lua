-- Generations of the dupefilter: which one records, when the next one takes over, and when the
-- older one is thrown away.
--
-- Include  shared/run_state
--
-- The filters of shared/seen/ have this in common. Each keeps its members in keys that begin with a
-- `base`, and numbers of its own in a hash of that name. Each returns
--
--   add(base, params, fingerprints)  -> for each 1: it was new, or 0; a second call answers 0
--   has(base, params, fingerprints)  -> for each 1: it is there, or 0; nothing is recorded
--   status(base, params)             -> {how many there are, how many fit before it grows, and as
--                                       a text the share of new ones that is taken for known}
--   keys(base)                       -> a function next_key, see drop_keys()

-- With REDISQ_SEEN_TTL the dupefilter has two generations, of which the older one is only asked. A
-- generation is rotated when a TTL has passed since its begin, and thrown away a TTL later. So a
-- fingerprint is known for at least one TTL, and for less than two.
local function rotate(meta)
  local due = tonumber(meta.rotates)
  if not due or NOW < due then return end
  local stored = fields_of(META, 'seen_ttl', 'config:backend')
  local backend, ttl = stored['config:backend'], tonumber(stored.seen_ttl) or corrupt(META)
  if meta.older then throw_away(backend, meta.older) end
  -- Nothing has been recorded since it was due.
  meta.older, due = meta.generation, due + ttl
  if NOW >= due then
    throw_away(backend, meta.older)
    meta.older, due = nil, NOW + ttl
    redis.call('HDEL', META, 'older')
  else
    redis.call('HSET', META, 'older', meta.older)
  end
  meta.generation = meta.run .. '.' .. integer(NOW)
  redis.call('HSET', META, 'generation', meta.generation, 'rotates', integer(due))
end

-- Records fingerprints: an array of 1 (it is new) or 0. What the older generation has is not
-- recorded again, or a URL that is met all the time would never be forgotten.
local function add_seen(filter, meta, fingerprints)
  local base = seen_base(meta.generation)
  if not meta.older then return filter.add(base, input.seen, fingerprints) end
  local known, asked, of = filter.has(seen_base(meta.older), input.seen, fingerprints), {}, {}
  local answers = {}
  for i, fingerprint in ipairs(fingerprints) do
    answers[i] = 0
    if known[i] == 0 then
      asked[#asked + 1] = fingerprint
      of[#asked] = i
    end
  end
  for i, new in ipairs(filter.add(base, input.seen, asked)) do answers[of[i]] = new end
  return answers
end
