-- Requests that are known by their identity: it is asked about in exact sets, beside the
-- dupefilter.
--
-- Include  shared/keys exact_set=shared/seen/exact

-- Whether the identities of start requests are new to the run: an array of 1 or 0.
local function new_starts(run, members)
  return exact_set().add(seen_base(run .. '.starts'), {'0'}, members)
end

-- The same for other requests that the dupefilter is not asked about. What is sent again is sent
-- soon, so only the last ones are kept: between one and two times RECENT.
local RECENT = 500000

local function new_recent(members)
  local newer = redis.call('HGET', META, 'recent') == '1' and 1 or 0
  local key, older, answers = seen_base('recent:' .. newer), seen_base('recent:' .. 1 - newer), {}
  for i, member in ipairs(members) do
    local known = redis.call('SISMEMBER', older, member) == 1
      or redis.call('SADD', key, member) == 0
    answers[i] = known and 0 or 1
  end
  if redis.call('SCARD', key) >= RECENT then
    redis.call('UNLINK', older)
    redis.call('HSET', META, 'recent', 1 - newer)
  end
  return answers
end
