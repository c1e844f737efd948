-- The robots.txt of a host, which one worker fetches and the other workers wait for.
--
-- Input    run, host, text (that the worker has fetched; false: it asks for it), ttl (ms for which
--          the text is valid; 0: the worker does not fetch it, another one may)
-- Reply    {what, text, ms for which it is valid}, what being
--            known   the text follows
--            fetch   the worker is to fetch it, before LOCK is over: then another one is told to
--            wait    another worker fetches it
--            lost    the run is not this one
-- Cost     O(log hosts + size of the text)
-- Retry    safe; an answer "fetch" that is lost costs the host LOCK
-- Memory   at maxmemory a text is refused whole, but in the place of some that have expired: then
--          the first write removes

-- Microseconds: longer than a worker takes for a robots.txt.
local LOCK = 30000000

if redis.call('HGET', META, 'run') ~= input.run then return {'lost', '', 0} end
local host = input.host
local stored = redis.call('HGET', ROBOTS, host) or ''
local left = number_of(redis.call('ZSCORE', ROBOTS_UNTIL, host)) - NOW
local has_text = string.sub(stored, 1, 4) == 'text'

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
  if input.ttl > 0 then keep('text' .. input.text, input.ttl * 1000)
  elseif not has_text then forget(host) end
elseif left <= 0 or stored == '' then
  keep('lock', LOCK)
  return {'fetch', '', 0}
elseif has_text then
  return {'known', string.sub(stored, 5), math.ceil(left / 1000)}
end
return {'wait', '', 0}
