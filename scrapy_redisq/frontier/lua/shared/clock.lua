-- The time by which everything is due.
--
-- Include  shared/keys shared/texts

-- Microseconds since 1970, by a clock that never goes back: where the server's does, or another
-- server takes over whose clock is `behind`, it goes on from the last `sign` of life. Else nothing
-- would be due, and nobody dead, before the server's clock is there again.
local time, clock = redis.call('TIME'), redis.call('HMGET', META, 'sign', 'behind')
local SERVER_TIME = tonumber(time[1]) * 1000000 + tonumber(time[2])
local BEHIND = number_of(clock[2])
local NOW = math.max(SERVER_TIME + BEHIND, number_of(clock[1]))
