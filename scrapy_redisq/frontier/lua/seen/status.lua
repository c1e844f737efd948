-- What the dupefilter says of itself.
--
-- Input    generation, seen (parameters of the dupefilter, see shared/seen/)
-- Reply    {count, capacity, fill, expected error rate}
-- Cost     O(layers); reads only
-- Include  shared/keys dupefilter=shared/seen/BACKEND

return dupefilter().status(seen_base(input.generation), input.seen)
