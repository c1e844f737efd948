-- What became of requests: see shared/history.lua.
--
-- Input    ids {id...} (false: the newest ones), skip, most (these two: of the newest)
-- Reply    {id, us since 1970 when it ended, record...}; those that are not there are left out
-- Cost     O(records); reads only
-- Include  shared/keys

local times, all = past_key('history'), past_key('histories')
local reply = {}
for _, id in ipairs(input.ids
    or redis.call('ZREVRANGE', times, input.skip, input.skip + input.most - 1)) do
  local ended, record = redis.call('ZSCORE', times, id), redis.call('HGET', all, id)
  if ended and record then
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = id, ended, record
  end
end
return reply
