-- Which fingerprints the dupefilter of the run knows: nothing is recorded, so that a full Redis
-- answers.
--
-- Input    seen (parameters of the dupefilter, see shared/seen/), fingerprints
-- Reply    an array of 1 (it was seen) or 0
-- Cost     that of a lookup each; reads only
-- Error    another key is in the place of one that is asked
-- Include  shared/keys dupefilter=shared/seen/BACKEND

local generation = redis.call('HGET', META, 'generation') or ''
return dupefilter().has(seen_base(generation), input.seen, input.fingerprints)
