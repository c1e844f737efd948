-- Seen on plain strings: a scalable blocked Bloom filter, no module needed.
--
-- Returns   what shared/generations.lua says.
-- KEYS      base                  hash: layers (shapes, see below), newest (fingerprints in the
--                                 newest layer), total, dropped (cursor of drop_keys())
--           base:LAYER:SEGMENT    string: whole blocks of 128 bytes, at most 32 MB a segment;
--                                 made when its first bit is set, at its full size
-- params    {error rate, capacity}, strings. They count when a layer is made.
-- Shapes    "blocks blocks_per_segment k capacity error" of each layer, joined by ";". A layer keeps
--           the shape it was made with.
-- Growth    The first layer is a little larger than the designed size: at 1e-6 it then takes just
--           under 5 bytes a URL, and two layers reach to about twice that size. Each layer costs a
--           lookup. A new one is as large as PEAK allows, or else GROWTH of all before it.
-- Error     Layer i may err at the rate / (i (i + 1)), whose sum stays below the rate however many
--           there are: layers grow by a factor here, and so need less tightening than the halving of
--           Almeida, Baquero, Preguica and Hutchison, "Scalable Bloom Filters" (2007).
-- Layout    Fingerprint of 20 bytes: the first four choose the block, each further byte one of
--           256 bits in one of the block's four quarters in turn, k of them. So a lookup reads
--           one block a layer, and an insertion writes one block of the newest layer.
-- Cost      per new fingerprint about 6.5 µs, and 1.5 µs for each layer before the newest.

local BLOCK = 128 -- bytes
local WORDS = '<' .. string.rep('I4', BLOCK / 4)
local HASHES = 16 -- bits per fingerprint: as many as 20 bytes give when four have chosen the block
-- Most bytes a URL just after a new layer was made, over those of the full first layer: 8.9 bytes at
-- 1e-6. Larger makes fewer layers, smaller less memory that waits to be filled.
local PEAK = 1.95
local GROWTH = 0.3
local byte = string.byte

-- Powers of two by exponent. Bits are tested and set by arithmetic: a call of the bit library
-- costs three times as much.
local POWER = {}
for i = 0, 32 do
  POWER[i] = 2 ^ i
end

local function parse(base, number, shape)
  local blocks, per_segment, k, capacity, rate =
    string.match(shape, '^(%d+) (%d+) (%d+) (%d+) (%S+)')
  return {
    blocks = tonumber(blocks),
    per_segment = tonumber(per_segment),
    k = tonumber(k),
    capacity = tonumber(capacity),
    rate = tonumber(rate),
    prefix = base .. ':' .. number .. ':',
    keys = {},
  }
end

-- -> layers, count of the newest, total, shapes as stored
local function load(base)
  local state = redis.call('HMGET', base, 'layers', 'newest', 'total')
  local layers, shapes = {}, state[1] or ''
  for shape in string.gmatch(shapes, '[^;]+') do
    layers[#layers + 1] = parse(base, #layers + 1, shape)
  end
  return layers, tonumber(state[2] or 0), tonumber(state[3] or 0), shapes
end

-- -> key, offset in bytes of the block at `place` (0 to 1) of the layer
local function locate(layer, place)
  local block = place * layer.blocks
  block = block - block % 1
  local within = block % layer.per_segment
  local segment = (block - within) / layer.per_segment
  local key = layer.keys[segment]
  if not key then
    key = layer.prefix .. segment
    layer.keys[segment] = key
  end
  return key, within * BLOCK
end

-- Are the first k bits all set? Mostly decided by the first or second.
local function holds(block, bits, k)
  local quarter = 0
  for i = 1, k do
    local bit = bits[i]
    local low = bit % 8
    local value = byte(block, quarter + (bit - low) / 8 + 1)
    if value % POWER[low + 1] < POWER[low] then
      return false
    end
    quarter = quarter == 96 and 0 or quarter + 32
  end
  return true
end

local function with_bits(block, bits, k)
  local words = { struct.unpack(WORDS, block) }
  local quarter = 1
  for i = 1, k do
    local bit = bits[i]
    local low = bit % 32
    local at, power = quarter + (bit - low) / 32, POWER[low]
    local word = words[at]
    if word % (power + power) < power then
      words[at] = word + power
    end
    quarter = quarter == 25 and 1 or quarter + 8
  end
  return struct.pack(WORDS, unpack(words, 1, BLOCK / 4))
end

-- -> is it in the layer, and then for writing: key, offset, block
local function look(layer, place, bits)
  local key, offset = locate(layer, place)
  -- Redis 7.0 turns a number into a text in five times as long.
  local from, to = string.format('%d', offset), string.format('%d', offset + BLOCK - 1)
  local block = redis.call('GETRANGE', key, from, to)
  if block == '' then return false, key, from, nil end
  return holds(block, bits, layer.k), key, from, block
end

-- Whether it is in one of the first `n` layers.
local function in_layers(layers, n, place, bits)
  for number = 1, n do
    if look(layers[number], place, bits) then return true end
  end
  return false
end

-- -> where the block of a fingerprint is in a layer (0 to 1), and its bits
local function parts_of(fingerprint)
  return struct.unpack('>I4', fingerprint) / POWER[32], {byte(fingerprint, 5, 20)}
end

-- -> the shape of the layer behind `layers`
local function next_shape(params, layers)
  local number, total, bytes = #layers + 1, 0, 0
  for _, layer in ipairs(layers) do
    total, bytes = total + layer.capacity, bytes + layer.blocks * BLOCK
  end
  local rate = tonumber(params[1]) / (number * (number + 1))
  -- Fingerprints a block, on average, with which a layer errs at most so often: from 1e-12 on, and
  -- never more than once in 100. 1 to 2 % less than the exact number, which tests work out.
  local x = math.log10(math.min(rate, 0.01))
  local load = 0.994 * 10 ^ (2.208493 + x * (0.153542 + x * (0.007001 + x * 0.000281)))
  local wanted = 1.05 * tonumber(params[2])
  if number > 1 then
    local most = PEAK * layers[1].blocks * BLOCK / layers[1].capacity * total
    wanted = math.max(GROWTH * total, (most - bytes) / BLOCK * load)
  end
  local blocks = math.ceil(wanted / load)
  -- A power of two, so that a segment with its header just fits a size class of the allocator.
  local segment = 4096
  while segment < 33554432 and segment * 64 <= blocks * BLOCK do segment = segment * 2 end
  local per_segment = segment / BLOCK - 1
  -- Whole segments: each is allocated whole.
  local segments = blocks / per_segment
  segments = number == 1 and math.ceil(segments) or math.floor(segments + 0.5)
  blocks = math.max(1, segments) * per_segment
  local capacity = math.floor(blocks * load)
  return string.format('%d %d %d %d %.6g', blocks, per_segment, HASHES, capacity, rate)
end

local function add(base, params, fingerprints)
  local layers, newest, total, shapes = load(base)
  local before, answers = total, {}
  for i = 1, #fingerprints do
    local place, bits = parts_of(fingerprints[i])
    if #layers == 0 or newest >= layers[#layers].capacity then
      local shape = next_shape(params, layers)
      layers[#layers + 1] = parse(base, #layers + 1, shape)
      shapes = shapes == '' and shape or shapes .. ';' .. shape
      newest = 0
      redis.call('HSET', base, 'layers', shapes, 'newest', 0)
    end
    local seen = in_layers(layers, #layers - 1, place, bits)
    if not seen then
      local layer, key, offset, block = layers[#layers], nil, nil, nil
      seen, key, offset, block = look(layer, place, bits)
      if not seen then
        if not block then
          redis.call('SETRANGE', key, layer.per_segment * BLOCK - 1, '\0')
          block = string.rep('\0', BLOCK)
        end
        redis.call('SETRANGE', key, offset, with_bits(block, bits, layer.k))
        newest, total = newest + 1, total + 1
      end
    end
    answers[i] = seen and 0 or 1
  end
  if total > before then redis.call('HSET', base, 'newest', newest, 'total', total) end
  return answers
end

local function has(base, params, fingerprints)
  local layers, answers = load(base), {}
  for i = 1, #fingerprints do
    answers[i] = in_layers(layers, #layers, parts_of(fingerprints[i])) and 1 or 0
  end
  return answers
end

local function status(base, params)
  local layers, _, total = load(base)
  local capacity, loss = 0, 0
  for _, layer in ipairs(layers) do
    capacity, loss = capacity + layer.capacity, loss + layer.rate
  end
  if #layers == 0 then capacity = parse(base, 1, next_shape(params, {})).capacity end
  return {total, capacity, tostring(loss)}
end

local function keys(base)
  local layers = load(base)
  return function(cursor)
    local segment = cursor
    for _, layer in ipairs(layers) do
      local segments = math.ceil(layer.blocks / layer.per_segment)
      if segment < segments then return layer.prefix .. segment, cursor + 1 end
      segment = segment - segments
    end
  end
end

return {add = add, has = has, status = status, keys = keys}
