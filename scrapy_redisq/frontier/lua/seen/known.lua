-- Which fingerprints a dupefilter knows: nothing is recorded, so that a full Redis answers.
--
-- Input    generation (its keys begin with seen:GENERATION), seen (parameters of the
--          dupefilter, see shared/seen/), fingerprints
-- Reply    an array of 1 (it was seen) or 0
-- Cost     that of a lookup each; reads only
-- Error    another key is in the place of one that is asked
-- Include  shared/keys dupefilter=shared/seen/BACKEND

return dupefilter().has(seen_base(input.generation), input.seen, input.fingerprints)
