-- How much one call does at most, before Redis serves other clients.

-- Redis allows about 8,000 values to unpack; a few hundred keep the C stack small.
local CHUNK = 200

-- Calls f(first, last) for the chunks of 1..n.
local function in_chunks(n, f)
  for first = 1, n, CHUNK do f(first, math.min(first + CHUNK - 1, n)) end
end

-- Bytes of entries that one call moves.
local MOST_BYTES = 4000000
