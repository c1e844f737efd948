-- Around every script: names a key that is damaged, and marks the run as corrupt.
--
-- Redis does not roll back a script that fails half-way. So when a script meets a key of another
-- type, or a value that cannot be, nobody goes on with the run: the key stays in the field
-- `corrupt` of meta until a person deletes the frontier, or says that the key is in order again.

local server, last_key = redis, KEYS[1]
local redis = setmetatable({
  call = function(command, key, ...)
    last_key = key
    return server.call(command, key, ...)
  end,
}, {__index = server})

-- Ends the script, as `key` has been damaged.
local function corrupt(key)
  last_key = key
  error('WRONGTYPE', 0)
end

-- Called when a script ends that way.
local at_failure = function() end

-- Redis' errors for damage: a key of another type, or a number that is none.
local DAMAGE = {'WRONGTYPE', 'not an integer', 'not a valid float', 'would overflow', 'item exists'}

-- Runs a script. If the script `writes`, a failure marks the run.
local function guarded(script, writes)
  local done, reply = pcall(script)
  if done then return reply end
  local text = type(reply) == 'table' and reply.err or tostring(reply)
  for _, sign in ipairs(DAMAGE) do
    if string.find(text, sign, 1, true) then
      local key = last_key or KEYS[1]
      pcall(at_failure)
      if writes then server.pcall('HSET', KEYS[1], 'corrupt', key) end
      return server.error_reply('CORRUPT ' .. key)
    end
  end
  error(reply, 0)
end
