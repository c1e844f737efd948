-- Requests that are known by their identity: it is asked about in exact sets, beside the
-- dupefilter.
--
-- Include  shared/keys exact_set=shared/seen/exact

-- Functions that take back what has been recorded in exact sets, and name the key that was asked.
local undo_exact = {}

-- After an error, when nothing but the sets of what is seen has been written to: names the key in
-- the way, if that was it, so that the same can be tried again when it is deleted.
local function key_at_fault(seen_undo, problem)
  local key, text = seen_undo(), type(problem) == 'table' and problem.err or tostring(problem)
  for i = #undo_exact, 1, -1 do
    local asked = undo_exact[i]()
    key = key or asked -- sets are asked before the dupefilter
  end
  if string.find(text, 'WRONGTYPE', 1, true) or string.find(text, 'item exists', 1, true) then
    return key
  end
  error(problem, 0)
end

-- Whether the identities of start requests are new to the run: an array of 1 or 0.
local function new_starts(run, members)
  local set = exact_set()
  undo_exact[#undo_exact + 1] = set.undo
  return set.add(seen_base(run .. '.starts'), {'0'}, members)
end

-- The same for other requests that the dupefilter is not asked about. What is sent again is sent
-- soon, so only the last ones are kept: between one and two times RECENT.
local RECENT = 500000

local function new_recent(members)
  local newer = redis.call('HGET', META, 'recent') == '1' and 1 or 0
  local key, older, answers = seen_base('recent:' .. newer), seen_base('recent:' .. 1 - newer), {}
  local touched, recorded = key, {}
  undo_exact[#undo_exact + 1] = function()
    for _, member in ipairs(recorded) do redis.call('SREM', key, member) end
    return touched
  end
  local function has(set, member)
    touched = set
    return redis.call('SISMEMBER', set, member) == 1
  end
  for i, member in ipairs(members) do
    local known = has(key, member) or has(older, member)
    if not known then
      redis.call('SADD', key, member)
      recorded[#recorded + 1] = member
    end
    answers[i] = known and 0 or 1
  end
  if redis.call('SCARD', key) >= RECENT then
    redis.call('UNLINK', older)
    redis.call('HSET', META, 'recent', 1 - newer)
  end
  return answers
end
