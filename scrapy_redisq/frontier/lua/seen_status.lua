-- What the dupefilter says of itself.
--
-- Input    generation, seen (see common.lua)
-- Reply    {count, capacity, fill, expected error rate}
-- Cost     O(layers); reads only
return seen_status(seen_base(input.generation), input.seen)
