-- A dupefilter, without a crawl around it or for people.
--
-- Input    what ("add", "has", "status", "forget"), generation (its keys begin with
--          seen:GENERATION), seen (parameters of the dupefilter, see shared/seen/; not of an
--          exact set), fingerprints (as the dupefilter takes them), run (of "has" and "forget",
--          for the exact set of its start requests), start (the fingerprint as this set takes it)
-- Reply    add      for each fingerprint 1 (it was new) or 0 (it was there)
--          has      the same, and behind it that of the start requests; nothing is recorded
--          status   {count, capacity, fill, expected error rate}
--          forget   {1} if the fingerprint had been seen, else {0}; of an exact dupefilter
-- Cost     that of shared/seen/ for each fingerprint
-- Retry    add is not to be trusted: what a call recorded whose reply was lost answers 0
-- Include  dupefilter=shared/seen/BACKEND exact_set=shared/seen/exact

local base, filter = seen_base(input.generation), dupefilter()
if input.what == 'add' then return filter.add(base, input.seen, input.fingerprints) end
if input.what == 'status' then return filter.status(base, input.seen) end
local starts = seen_base(input.run .. '.starts')
if input.what == 'forget' then
  return {math.max(filter.forget(base, input.start), exact_set().forget(starts, input.start))}
end
local answers = filter.has(base, input.seen, input.fingerprints)
answers[#answers + 1] = exact_set().has(starts, {'0'}, {input.start})[1]
return answers
