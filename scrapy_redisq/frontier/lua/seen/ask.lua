-- Whether a request has been asked for before, for people: nothing is recorded.
--
-- Input    generation (its keys begin with seen:GENERATION), run, seen (parameters of the
--          dupefilter, see shared/seen/), fingerprint (as the dupefilter takes it; false: it is not
--          asked), start (the same for the exact set of start requests)
-- Reply    {1 if it was seen, 0 if not, -1 if the dupefilter is not asked; the same of the start
--          requests}
-- Cost     O(layers) of the dupefilter; reads only
-- Include  shared/keys dupefilter=shared/seen/BACKEND exact_set=shared/seen/exact

local seen = -1
if input.fingerprint then
  seen = dupefilter().has(seen_base(input.generation), input.seen, {input.fingerprint})[1]
end
local start = exact_set().has(seen_base(input.run .. '.starts'), {'0'}, {input.start})[1]
return {seen, start}
