-- Which limit and which budget hold for a slot.
--
-- A limit is "DELAY INTERVAL BURST CONCURRENCY", times in us, 0: none; behind one of the settings
-- may stand a budget, how many requests a run takes in. A rate is an interval and a burst. The
-- pattern is a slot, *.DOMAIN, or * for all: the one that says most holds.

local MOST_LABELS = 200 -- of a slot's name; those of hosts have 127 at most
local any_limits

-- -> what the settings say of a slot: its limit and its budget, as a text
local function of_settings(slot)
  if any_limits == nil then any_limits = redis.call('EXISTS', LIMITS) == 1 end
  if not any_limits then return '' end
  local patterns, domain = {slot}, slot
  while #patterns < MOST_LABELS and string.find(domain, '.', 1, true) do
    domain = string.match(domain, '%.(.*)$')
    patterns[#patterns + 1] = '*.' .. domain
  end
  patterns[#patterns + 1] = '*'
  for _, found in ipairs(redis.call('HMGET', LIMITS, unpack(patterns))) do
    if found then return found end
  end
  return ''
end

local function budget_of(text) return number_of(string.match(text, '^%d+ %d+ %d+ %d+ (%d+)$')) end

-- Whether the run has taken in as many requests of a slot as it may; if not, it takes in one more.
local function is_over_budget(slot)
  local budget = budget_of(of_settings(slot))
  if budget == 0 then return false end
  if number_of(redis.call('HGET', TAKEN, slot)) >= budget then return true end
  redis.call('HINCRBY', TAKEN, slot, 1)
end

-- Sets a slot's limit: `own`, or that of the settings. After a faster rate tat is at most `burst`
-- intervals away, whatever the slower one has made of it.
local function set_limit(slot, state, own)
  local text = own ~= '' and own or of_settings(slot)
  local delay, interval, burst, concurrency = string.match(text, '^(%d+) (%d+) (%d+) (%d+)')
  state.own = own
  state.limit = {delay = number_of(delay), interval = number_of(interval),
    burst = math.max(1, number_of(burst)), concurrency = number_of(concurrency)}
  state.tat = math.min(state.tat, NOW + state.limit.burst * state.limit.interval)
end
