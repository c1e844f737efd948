-- Takes in requests, unless they are duplicates.
--
-- Include  shared/counts shared/queues shared/dead shared/slots/limits shared/generations
--          exact_set=shared/seen/exact dupefilter=shared/seen/BACKEND

-- Identities, which unfiltered requests have in the place of a fingerprint.

-- Whether the identities of start requests are new to the run: an array of 1 or 0.
local function new_starts(run, identities)
  return exact_set().add(seen_base(run .. '.starts'), {'0'}, identities)
end

-- The same for other requests. A request is sent again soon or never, so only the last identities
-- are kept: between one and two times RECENT.
local RECENT = 500000

local function new_recent(identities)
  local newer = redis.call('HGET', META, 'recent') == '1' and 1 or 0
  local key, older, answers = seen_base('recent:' .. newer), seen_base('recent:' .. 1 - newer), {}
  for i, identity in ipairs(identities) do
    local known = redis.call('SISMEMBER', older, identity) == 1
      or redis.call('SADD', key, identity) == 0
    answers[i] = known and 0 or 1
  end
  if redis.call('SCARD', key) >= RECENT then
    redis.call('UNLINK', older)
    redis.call('HSET', META, 'recent', 1 - newer)
  end
  return answers
end

-- -> which of the requests in input.enqueue are new: an array of 1 or 0
local function ask_if_new(meta)
  local FINGERPRINT, ASKED, IDENTITY = 3, 5, 6
  -- Identities or fingerprints by set, and `of` which request each is.
  local starts, recent, seen, answers = {of = {}}, {of = {}}, {of = {}}, {}
  local function ask(set, member, i)
    set[#set + 1] = member
    set.of[#set] = i
  end
  for i, item in ipairs(input.enqueue) do
    answers[i] = 1
    if item[FINGERPRINT] then ask(seen, item[FINGERPRINT], i) end
  end
  local function answer(asked, new)
    for i, number in ipairs(asked.of) do answers[number] = new[i] end
  end
  -- The dupefilter first: if it takes no more, nothing has been recorded in the sets.
  if #seen > 0 or input.also then
    rotate(meta)
    local filter = dupefilter()
    if input.also then add_seen(filter, meta, input.also) end
    answer(seen, add_seen(filter, meta, seen))
  end
  for i, item in ipairs(input.enqueue) do
    if answers[i] == 1 and item[ASKED] > 0 then
      ask(item[ASKED] == 1 and starts or recent, item[IDENTITY], i)
    end
  end
  if #starts > 0 then answer(starts, new_starts(meta.run, starts)) end
  if #recent > 0 then answer(recent, new_recent(recent)) end
  return answers
end

-- Adds requests: input.queues is {{slot, priority}...}, input.enqueue {{number of the queue,
-- entry, fingerprint or false, delay in ms, and by which its identity is asked about (too, if its
-- fingerprint is new): 1 new_starts(), 2 new_recent(), 0 none; its identity or false}...},
-- input.also fingerprints that are only recorded. `meta` has run, generation, older, rotates,
-- order and budgets. A request that is over the budget of its page (its delay is below 0), or of its
-- slot, becomes a dead letter.
-- -> a string of one character each: '1' it was new, '0' a duplicate
local function enqueue(meta)
  local queues, entries, known = input.queues or {}, {}, 0
  -- Counted before anything is recorded: if a key is damaged, requests that were recorded and not
  -- queued are missing at the end.
  count('created', #input.enqueue)
  local new, outcome = ask_if_new(meta), {}
  for i, item in ipairs(input.enqueue) do
    outcome[i] = new[i] == 0 and '0' or '1'
    if new[i] == 0 then
      known = known + 1
    else
      local number, request, _, ms = unpack(item)
      local entry, slot, priority = '\0' .. request, unpack(queues[number])
      if ms < 0 or meta.budgets and is_over_budget(slot) then
        bury(slot, priority, entry, {reason = 'budget', worker = input.worker,
          detail = 'that of its ' .. (ms < 0 and 'page (REDISQ_PAGE_BUDGET)' or 'slot')})
      elseif ms > 0 then
        delay(record_of(slot, priority, entry), ms)
        added = added + 1
      else
        entries[number] = entries[number] or {}
        table.insert(entries[number], entry)
      end
    end
  end
  count('created', -known)
  count('duplicates', known)
  for number, queue in ipairs(queues) do
    if entries[number] then put(queue[1], queue[2], entries[number], meta.order) end
  end
  return table.concat(outcome)
end
