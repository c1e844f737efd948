-- Notes what a person, or somebody's program, has done to the frontier: the newest are kept in
-- `actions`, as msgpack arrays of us since 1970, by whom, what, on what, and how many.
--
-- Input    by, what, on, number
-- Reply    1; 0 if there is no frontier, or something is in the way: nothing rests on it
-- Effect   the same once more within a minute is added to what was noted
-- Cost     O(1)
-- Retry    it is noted twice
-- Memory   the first write removes
-- Include  shared/keys shared/bounds shared/texts shared/clock

local MOST_ACTIONS, SAME = 1000, 60000000
if not redis.call('HGET', META, 'run') then return 0 end
local action = {NOW, readable(input.by), readable(input.what), readable(input.on), input.number}
redis.call('HDEL', META, '')
local last = redis.pcall('LINDEX', past_key('actions'), -1)
local known, former = pcall(cmsgpack.unpack, last)
if known and type(former) == 'table' and former[2] == action[2] and former[3] == action[3]
    and former[4] == action[4] and type(former[1]) == 'number' and type(former[5]) == 'number'
    and NOW - former[1] < SAME and redis.pcall('RPOP', past_key('actions')) == last then
  action[5] = action[5] + former[5]
end
append(past_key('actions'), action, MOST_ACTIONS)
return 1
