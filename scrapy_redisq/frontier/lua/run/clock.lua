-- The time by which everything is due on a shard, for whoever has to tell when something was.
--
-- Input    (nothing)
-- Reply    us since 1970
-- Cost     O(1); reads only
-- Include  shared/texts shared/clock

return integer(NOW)
