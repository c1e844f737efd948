-- Seen in RedisBloom: scalable filters of the module, one after the other.
--
-- Returns   what shared/generations.lua says.
-- KEYS      base           hash: filters (how many), rate (of error, of all together), unit (size
--                          of a layer of the newest filter), room (what that filter still takes),
--                          capacity (what all filters take), total (fingerprints)
--           base:FILTER    a filter of the module's own type, of LAYERS layers at most
-- params    {error rate, capacity}, strings. They count when the first filter is made.
-- Growth    A filter grows by layers of its first layer's size (EXPANSION 1); a layer of the next
--           filter is SHARE as large as all that is there. At 1e-6 that is 5 bytes a URL at most at
--           the designed size and 9 at any size past it, and a lookup for each doubling or so. (One
--           filter whose layers double takes 12 bytes, one whose layers do not a hundred lookups.)
-- Error     The first filter may err at 0.9 of the rate, filter i at 0.1 / (i (i - 1)) of it: the
--           sum stays below the rate however many there are. The module gives the first layer of a
--           filter half of that and each next one half again.
-- Cost      A new fingerprint takes 0.6 to 0.9 µs of Redis up to twice a capacity of a million, in
--           calls of 300; 1.9 at 10 times.

local LAYERS = 5 -- in one filter
local MOST_FILTERS = 64 -- each makes room for 2.5 times as much as all before it
local SHARE = 0.5 -- size of a layer of the next filter over all that there is
local call, format = redis.call, string.format

local function rate_of(state, filter)
  return state.rate * (filter == 1 and 0.9 or 0.1 / (filter * (filter - 1)))
end

-- How many fingerprints a layer takes that shall take `wanted`: memory comes in four sizes for
-- each doubling, and the second layer, which is the larger for its smaller error, is to fill one.
local function unit_of(wanted, rate)
  local bytes_each = -math.log(rate / 4) / math.log(2) ^ 2 / 8 -- of a Bloom filter at its optimum
  local bytes = wanted * bytes_each
  local step = 2 ^ math.floor(math.log(bytes) / math.log(2)) / 4
  return math.max(1, math.floor((math.ceil(bytes / step) * step - 64) / bytes_each))
end

local function load(base, params)
  local stored = fields_of(base, 'filters', 'rate', 'unit', 'room', 'capacity', 'total')
  local state = {rate = tonumber(stored.rate or params[1])}
  for _, name in ipairs({'filters', 'unit', 'room', 'capacity', 'total'}) do
    state[name] = tonumber(stored[name] or 0)
  end
  -- Loops go by it: a number of another program must not keep Redis from serving others.
  state.filters = math.min(state.filters, MOST_FILTERS)
  return state
end

local function add_filter(base, params, state)
  state.filters = state.filters + 1
  local rate = rate_of(state, state.filters)
  local wanted = state.filters == 1 and tonumber(params[2]) or SHARE * state.capacity
  state.unit = unit_of(wanted, rate)
  state.room = LAYERS * state.unit
  state.capacity = state.capacity + state.room
  call('BF.RESERVE', base .. ':' .. state.filters, format('%.17g', rate),
    format('%.0f', state.unit), 'EXPANSION', '1')
  call('HSET', base, 'filters', state.filters, 'rate', format('%.17g', state.rate),
    'unit', state.unit, 'room', state.room, 'capacity', state.capacity)
end

-- -> the filter's answers, one for each fingerprint
local function ask(command, base, filter, fingerprints)
  local key, answers = base .. ':' .. filter, {}
  in_chunks(#fingerprints, function(first, last)
    local reply = call(command, key, unpack(fingerprints, first, last))
    for i = first, last do
      local answer = reply[i - first + 1]
      -- One behind an error is not there: valkey-bloom ends so when a filter takes no more. A request
      -- that is taken for known by mistake is lost.
      if answer ~= 0 and answer ~= 1 then
        local said = type(answer) == 'table' and answer.err or tostring(answer)
        error('ERR ' .. command .. ' ' .. key .. ' has answered: ' .. said, 0)
      end
      answers[i] = answer
    end
  end)
  return answers
end

local function add(base, params, fingerprints)
  if #fingerprints == 0 then return {} end
  local state = load(base, params)
  -- Before anything is recorded, for what is recorded by a call that then fails is lost. A
  -- filter that was deleted is replaced: BF.MADD would make one for 100 members at 1 %.
  if state.room < #fingerprints or call('EXISTS', base .. ':' .. state.filters) == 0 then
    add_filter(base, params, state)
  end
  -- Only what no older filter holds goes into the newest.
  local answers, items, places, count = {}, fingerprints, {}, 0
  for filter = 1, state.filters - 1 do
    local known, new, new_places = ask('BF.MEXISTS', base, filter, items), {}, {}
    for i = 1, #items do
      local place = places[i] or i
      if known[i] == 1 then
        answers[place] = 0
      else
        new[#new + 1] = items[i]
        new_places[#new] = place
      end
    end
    items, places = new, new_places
  end
  for i, new in ipairs(ask('BF.MADD', base, state.filters, items)) do
    answers[places[i] or i] = new
    count = count + new
  end
  if count > 0 then
    call('HSET', base, 'room', state.room - count, 'total', state.total + count)
  end
  return answers
end

local function has(base, params, fingerprints)
  local answers = {}
  for i = 1, #fingerprints do answers[i] = 0 end
  for filter = 1, load(base, params).filters do
    for i, known in ipairs(ask('BF.MEXISTS', base, filter, fingerprints)) do
      answers[i] = math.max(answers[i], known)
    end
  end
  return answers
end

local function status(base, params)
  local state, loss = load(base, params), 0
  if state.filters == 0 then return {0, unit_of(tonumber(params[2]), rate_of(state, 1)), 0} end
  for filter = 1, state.filters do loss = loss + rate_of(state, filter) end
  -- Layers that are not made yet make no room.
  local later = math.min(LAYERS - 1, math.floor(state.room / state.unit))
  return {state.total, state.capacity - later * state.unit, tostring(loss)}
end

-- The module frees a filter as a whole, in 0.14 ms for each megabyte.
local function keys(base)
  local filters = tonumber(call('HGET', base, 'filters') or 0)
  return function(filter)
    if filter < filters then return base .. ':' .. filter + 1, filter + 1 end
  end
end

return {add = add, has = has, status = status, keys = keys}
