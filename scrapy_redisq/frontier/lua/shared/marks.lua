-- Marks: what happened to the fleet, for people who look at its past. On shard 0.
--
-- A mark is a msgpack array: us since 1970, kind ("began" or "completed", a run; "release" or
-- "configuration", of the worker that joined, is not that of the one before), worker or '', what
-- (the run's name or id; the release; a digest of the settings). Nothing rests on marks, so
-- whatever is in the way of one is passed over.
--
-- Include  shared/keys shared/texts shared/clock shared/bounds

local MOST_MARKS = 100

-- To be called behind a script's first write.
local function mark(kind, worker, what)
  append(past_key('marks'), {NOW, kind, readable(worker), readable(what)}, MOST_MARKS)
end
