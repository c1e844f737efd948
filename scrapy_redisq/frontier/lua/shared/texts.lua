-- Numbers, names and requests as Redis keeps them.
--
-- An ENTRY is one byte, how often a worker died with it, followed by the serialised request,
-- which no script looks into. A RECORD is an entry with where it came from:
-- "PRIORITY:LENGTH-OF-SLOT:SLOT" .. ENTRY

-- A number that is kept as text; 0 if it is not there, or something that nobody here has written.
local function number_of(text)
  local number = tonumber(text or '') or 0
  return math.abs(number) < 2 ^ 53 and number or 0
end

local function integer(number) return string.format('%.0f', number) end

-- Whether a text is UTF-8 (Unicode 15, table 3-7). Names are in replies that cannot be read else.
local function is_text(text)
  if not string.find(text, '[\128-\255]') then return true end
  for _, sequence in ipairs({'[\194-\223]', '\224[\160-\191]', '[\225-\236\238\239][\128-\191]',
      '\237[\128-\159]', '\240[\144-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191]',
      '\244[\128-\143][\128-\191]'}) do
    text = string.gsub(text, sequence .. '[\128-\191]', ' ')
  end
  return not string.find(text, '[\128-\255]')
end

-- The same text, or what it can be shown as.
local function readable(text)
  if is_text(text) then return text end
  return (string.gsub(text, '[\128-\255]', function(c)
    return string.format('\\x%02x', string.byte(c))
  end))
end

-- Some fields of a hash, by their names; false where there is none.
local function fields_of(key, ...)
  local names, fields = {...}, {}
  for i, value in ipairs(redis.call('HMGET', key, ...)) do fields[names[i]] = value end
  return fields
end

local function hash_of(key)
  local hash, fields = {}, redis.call('HGETALL', key)
  for i = 1, #fields, 2 do hash[fields[i]] = fields[i + 1] end
  return hash
end

-- The lowest score of a sorted set: when the first of its members is due. nil: it has none.
local function first_score(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
end

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
