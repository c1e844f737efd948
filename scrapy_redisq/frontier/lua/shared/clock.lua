-- The time by which everything is due.
--
-- Include  shared/keys

-- Microseconds since 1970, by a clock that never goes back: where the server's does, or another
-- server takes over whose clock is `behind`, it goes on from the last `sign` of life. Else nothing
-- would be due, and nobody dead, before the server's clock is there again.
local time, clock = redis.call('TIME'), redis.pcall('HMGET', META, 'sign', 'behind')
local SERVER_TIME = tonumber(time[1]) * 1000000 + tonumber(time[2])
local BEHIND = tonumber(clock[2] or '') or 0
local NOW = math.max(SERVER_TIME + BEHIND, tonumber(clock[1] or '') or 0)
-- In the year 2112: nothing of ours is due then.
local FAR = 2 ^ 52
if not (NOW >= SERVER_TIME and NOW < FAR) then NOW = SERVER_TIME end -- somebody has bent it
