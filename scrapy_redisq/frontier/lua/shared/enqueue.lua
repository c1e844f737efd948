-- Takes in requests, unless they are duplicates.
--
-- Include  shared/keys shared/counts shared/records shared/queues shared/identities shared/kept

-- Adds requests: input.queues is {{slot, priority}...}, input.enqueue {{number of the queue,
-- entry, fingerprint or false, delay in ms, and where it is known by something else than its
-- fingerprint: 1 to ask new_starts() about its identity, 2 new_recent(), 3 the same without
-- recording it, 0 nobody; its identity; lease that the worker must hold or ''; and for one that
-- cannot be stored, whose queue is 0, its number in input.claims}...}, which is {{field, lease and
-- page for claim()}...}, input.also fingerprints that are only recorded. `void` are leases {lease
-- = true} that the worker does not hold.
-- -> a string of one character each: '1' it was new, '0' a duplicate, '2' its lease is void, '3' to
-- '6' see claim()
local function enqueue(seen_add, run, generation, order, void)
  local queues = input.queues or {}
  for _, queue in ipairs(queues) do
    if not is_priority(queue[2]) then error('no priority: ' .. queue[2], 0) end
  end
  local fingerprints, starts, recent, looked_at = {}, {}, {}, {}
  for _, item in ipairs(input.enqueue) do
    if item[3] then fingerprints[#fingerprints + 1] = item[3]
    elseif item[5] == 1 then starts[#starts + 1] = item[6]
    elseif item[5] == 2 then recent[#recent + 1] = item[6]
    elseif item[5] == 3 then looked_at[#looked_at + 1] = item[6] end
  end
  -- Sets first: what they record can be taken back, RedisBloom's cannot.
  local new_start = #starts > 0 and new_starts(run, starts) or {}
  local newly = #recent > 0 and new_recent(recent) or {}
  local looked = #looked_at > 0 and new_recent(looked_at, true) or {}
  if input.also and #input.also > 0 then
    seen_add(seen_base(generation), input.seen, input.also)
  end
  local new = #fingerprints > 0
    and seen_add(seen_base(generation), input.seen, fingerprints) or {}
  local outcome, entries, created, duplicates = {}, {}, 0, 0
  local next_fingerprint, next_start, next_recent, next_looked = 1, 1, 1, 1
  for i, item in ipairs(input.enqueue) do
    local is_new = true
    if item[3] then
      is_new = new[next_fingerprint] == 1
      next_fingerprint = next_fingerprint + 1
    elseif item[5] == 1 then
      is_new = new_start[next_start] == 1
      next_start = next_start + 1
    elseif item[5] == 2 then
      is_new = newly[next_recent] == 1
      next_recent = next_recent + 1
    elseif item[5] == 3 then
      is_new = looked[next_looked] == 1
      next_looked = next_looked + 1
    end
    if item[7] and void[item[7]] then
      outcome[i] = '2'
    elseif item[8] then
      outcome[i] = claim(is_new, unpack(input.claims[item[8]]))
      if outcome[i] == '0' then duplicates = duplicates + 1 end
    elseif not is_new then
      outcome[i] = '0'
      duplicates = duplicates + 1
    else
      outcome[i] = '1'
      created = created + 1
      local queue, entry = queues[item[1]], '\0' .. item[2]
      if item[4] > 0 then
        delay(record_of(queue[1], queue[2], entry), item[4])
        added = added + 1
      else
        local group = entries[item[1]]
        if not group then
          group = {}
          entries[item[1]] = group
        end
        group[#group + 1] = entry
      end
    end
  end
  for number, queue in ipairs(queues) do
    if entries[number] then put(queue[1], queue[2], entries[number], order) end
  end
  count('created', created)
  count('duplicates', duplicates)
  return table.concat(outcome)
end
