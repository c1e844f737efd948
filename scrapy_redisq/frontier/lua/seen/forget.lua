-- A person wants a URL to be taken for one that was never seen: of an exact dupefilter.
--
-- Input    generation, run, fingerprint (as the exact dupefilter takes it)
-- Reply    1 if it had been seen, else 0
-- Cost     O(1)
-- Retry    answers 0
-- Include  shared/keys exact_set=shared/seen/exact

local set = exact_set()
return math.max(set.forget(seen_base(input.generation), input.fingerprint),
  set.forget(seen_base(input.run .. '.starts'), input.fingerprint))
