-- Records fingerprints in a dupefilter that stands alone, without a frontier around it.
--
-- Input    generation (its keys begin with seen:GENERATION), seen (parameters of the
--          dupefilter, see shared/seen/), fingerprints
-- Reply    an array of 1 (was new) or 0 (was there)
-- Cost     that of seen_add
-- Retry    not to be trusted: a fingerprint recorded by a call whose reply was lost answers 0
-- Include  shared/keys dupefilter=shared/seen/BACKEND

return dupefilter().add(seen_base(input.generation), input.seen, input.fingerprints)
