-- How much one call does at most, before Redis serves other clients, and how much is kept.

-- Redis allows about 8,000 values to unpack; a few hundred keep the C stack small.
local CHUNK = 200

-- Calls f(first, last) for the chunks of 1..n.
local function in_chunks(n, f)
  for first = 1, n, CHUNK do f(first, math.min(first + CHUNK - 1, n)) end
end

-- Bytes of entries that one call moves.
local MOST_BYTES = 4000000

-- Adds to a list of which only the newest `most` are kept. Nothing rests on it: what is in the way
-- of it is passed over.
local function append(key, array, most)
  local length = redis.pcall('RPUSH', key, cmsgpack.pack(array))
  if type(length) == 'number' then -- some more each time where `most` was lowered
    for _ = 1, math.min(length - most, 10) do redis.call('LPOP', key) end
  end
end
