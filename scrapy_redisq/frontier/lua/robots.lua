-- The robots.txt of a host, which one worker fetches and the other workers wait for.
--
-- Input    run, host, claimant (of this worker), take (it fetches although another one does), text
--          (that it has fetched; false: it asks for it), ttl (ms, of the text), release (it will
--          not fetch it)
-- Reply    {what, text, ms for which it is valid}, what being
--            known   the text follows
--            fetch   the worker is to fetch it, and to ask again and again meanwhile: when it has
--                    not done so for CLAIM, another one is told to
--            wait    another worker fetches it
--            lost    the run is not this one
-- Cost     O(log hosts + size of the text)
-- Retry    safe
-- Error    another key is in the place of one of these; nothing was changed
-- Memory   at maxmemory a text is refused whole, but in the place of some that have expired: then
--          the first write removes
-- Include  shared/keys shared/clock shared/foreign

-- Microseconds.
local CLAIM = 5000000

local foreign = foreign_of({'HLEN', META, 'HLEN', ROBOTS, 'ZCARD', ROBOTS_UNTIL})
if foreign then return foreign_error(foreign) end
if redis.call('HGET', META, 'run') ~= input.run then return {'lost', '', 0} end
local host, mine = input.host, 'by ' .. input.claimant
local stored = redis.call('HGET', ROBOTS, host)
local left = tonumber(redis.call('ZSCORE', ROBOTS_UNTIL, host) or 0) - NOW
if left <= 0 then stored = false end

local function keep(value, us)
  redis.call('HSET', ROBOTS, host, value)
  redis.call('ZADD', ROBOTS_UNTIL, NOW + us, host)
end
local function forget(name)
  redis.call('ZREM', ROBOTS_UNTIL, name)
  redis.call('HDEL', ROBOTS, name)
end

if input.text then
  -- Some texts that nobody has asked for again.
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', ROBOTS_UNTIL, '-inf', NOW, 'LIMIT', 0, 10)) do
    forget(old)
  end
  keep('text' .. input.text, input.ttl * 1000)
  return {'known', '', input.ttl}
elseif input.release then
  if stored == mine then forget(host) end
  return {'wait', '', 0}
elseif stored and string.sub(stored, 1, 4) == 'text' then
  return {'known', string.sub(stored, 5), math.ceil(left / 1000)}
elseif stored and stored ~= mine and not input.take then
  return {'wait', '', 0}
end
keep(mine, CLAIM)
return {'fetch', '', 0}
