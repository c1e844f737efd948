-- A dupefilter, without a crawl around it or for people.
--
-- Input    what ("add", "has", "status", "forget"), generation (of "add": its keys begin with
--          seen:GENERATION; the others are about the frontier's own generations), seen (parameters
--          of the dupefilter, see shared/seen/; not of an exact set), fingerprints (as the
--          dupefilter takes them), run (of "has" and "forget", for the exact set of its start
--          requests), start (of "has": the fingerprint as this set takes it), members (of "forget":
--          fingerprints as that)
-- Reply    add      for each fingerprint 1 (it was new) or 0 (it was there)
--          has      the same, and behind it that of the start requests; nothing is recorded
--          status   {count and capacity of all generations, expected error rate of each}
--          forget   for each fingerprint 1 (it had been seen) or 0; of an exact dupefilter
-- Cost     that of shared/seen/ for each fingerprint
-- Retry    add is not to be trusted: what a call recorded whose reply was lost answers 0
-- Include  dupefilter=shared/seen/BACKEND exact_set=shared/seen/exact

local filter = dupefilter()
if input.what == 'add' then
  return filter.add(seen_base(input.generation), input.seen, input.fingerprints)
end
local meta = fields_of(META, 'generation', 'older')
local bases = {seen_base(meta.generation or '')}
if meta.older then bases[2] = seen_base(meta.older) end
if input.what == 'status' then
  local count, capacity, loss = 0, 0, 0
  for _, base in ipairs(bases) do
    local part = filter.status(base, input.seen)
    count, capacity = count + part[1], capacity + part[2]
    loss = math.max(loss, tonumber(part[3]))
  end
  return {count, capacity, tostring(loss)}
end
local starts = seen_base(input.run .. '.starts')
if input.what == 'forget' then
  local exact, were_there = exact_set(), {}
  for i, member in ipairs(input.members) do
    were_there[i] = exact.forget(starts, member)
    for _, base in ipairs(bases) do
      were_there[i] = math.max(were_there[i], filter.forget(base, member))
    end
  end
  return were_there
end
local answers = {}
for _, base in ipairs(bases) do
  for i, known in ipairs(filter.has(base, input.seen, input.fingerprints)) do
    answers[i] = math.max(answers[i] or 0, known)
  end
end
answers[#answers + 1] = exact_set().has(starts, {'0'}, {input.start})[1]
return answers
