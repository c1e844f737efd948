-- Entries and records.
--
-- An ENTRY is one byte, how often a worker died with it, followed by the serialised request,
-- which no script looks into. A RECORD is an entry with where it came from:
-- "PRIORITY:LENGTH-OF-SLOT:SLOT" .. ENTRY
--
-- Include  shared/texts

local function record_of(slot, priority, entry)
  return priority .. ':' .. #slot .. ':' .. slot .. entry
end

-- As long as they may be: priorities have up to 2^53.
local function is_priority(text) return #text <= 17 and string.find(text, '^%-?%d+$') ~= nil end

-- -> slot, priority (as text), where the entry begins; nil if it is no record
local function origin_of(record)
  local _, after, priority, length = string.find(record, '^(%-?%d+):(%d+):')
  local last = after and after + tonumber(length)
  if not last or last > #record or not is_priority(priority) then return end
  local slot = string.sub(record, after + 1, last)
  if is_text(slot) then return slot, priority, last + 1 end
end

-- -> slot, priority (as text), entry; nil if it is no record
local function parse_record(record)
  local slot, priority, first = origin_of(record)
  if slot then return slot, priority, string.sub(record, first) end
end

-- The record of a member of `delayed`; '' if it has none.
local function delayed_record(member)
  return string.sub(member, (string.find(member, ':', 1, true) or #member) + 1)
end

-- A foreign entry may be empty.
local function deliveries_of(entry) return string.byte(entry, 1) or 0 end
local function with_deliveries(entry, n)
  return string.char(math.min(n, 255)) .. string.sub(entry, 2)
end
