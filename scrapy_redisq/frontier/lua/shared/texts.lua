-- Numbers and names as Redis keeps them.

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
