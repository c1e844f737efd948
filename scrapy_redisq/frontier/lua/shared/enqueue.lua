-- Takes in requests, unless they are duplicates.
--
-- Include  shared/keys shared/counts shared/records shared/queues shared/identities

-- Adds requests: input.queues is {{slot, priority}...}, input.enqueue {{number of the queue,
-- entry, fingerprint or false, delay in ms, and where it is known by something else than its
-- fingerprint: 1 to ask new_starts() about its identity, 2 new_recent(); its identity}...},
-- input.also fingerprints that are only recorded.
-- `meta` has run, generation and order.
-- -> a string of one character each: '1' it was new, '0' a duplicate
local function enqueue(seen_add, meta)
  local queues = input.queues or {}
  for _, queue in ipairs(queues) do
    if not is_priority(queue[2]) then error('no priority: ' .. queue[2], 0) end
  end
  -- Who is asked, what about, and the answers: 1 or 0 each.
  local asked = {starts = {}, recent = {}, seen = {}}
  local function asks(item)
    return item[3] and 'seen' or item[5] == 1 and 'starts' or item[5] == 2 and 'recent'
  end
  for _, item in ipairs(input.enqueue) do
    local who = asks(item)
    if who then table.insert(asked[who], item[3] or item[6]) end
  end
  -- Counted before anything is recorded: should a key be damaged, what was recorded and is not in a
  -- queue is missing at the end.
  count('created', #input.enqueue)
  local new = {}
  -- First the dupefilter: it may take no more, and what sets have recorded by then would be lost.
  if input.also and #input.also > 0 then
    seen_add(seen_base(meta.generation), input.seen, input.also)
  end
  new.seen = #asked.seen > 0 and seen_add(seen_base(meta.generation), input.seen, asked.seen)
  new.starts = #asked.starts > 0 and new_starts(meta.run, asked.starts)
  new.recent = #asked.recent > 0 and new_recent(asked.recent)
  local outcome, entries, known = {}, {}, 0
  local answered = {starts = 0, recent = 0, seen = 0}
  for i, item in ipairs(input.enqueue) do
    local who, is_new = asks(item), true
    if who then
      answered[who] = answered[who] + 1
      is_new = new[who][answered[who]] == 1
    end
    outcome[i] = is_new and '1' or '0'
    if not is_new then
      known = known + 1
    else
      local queue, entry = queues[item[1]], '\0' .. item[2]
      if item[4] > 0 then
        delay(record_of(queue[1], queue[2], entry), item[4])
        added = added + 1
      else
        entries[item[1]] = entries[item[1]] or {}
        table.insert(entries[item[1]], entry)
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
