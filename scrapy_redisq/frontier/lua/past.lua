-- The past of the frontier, for people: reads it, or notes an action of a person. An action is a
-- msgpack array of us since 1970, by whom, what, on what, and how many.
--
-- Input    list (marks, actions, series:10...), most (of the newest); or history (true), ids
--          {id...} (false: the newest ones), skip, most; or note {by whom, what, on what, number}
-- Reply    of a list msgpack arrays, as they are stored; of the history {id, us since 1970 when it
--          ended, record...}, without those that are not there; of a note 1, 0 if there is no
--          frontier
-- Effect   the same action once more within a minute is added to what was noted
-- Cost     O(what is read), at most 1,488 items of a list
-- Retry    a note is there twice
-- Memory   the first write removes
-- Include  past=shared/past

if input.list then return redis.call('LRANGE', past_key(input.list), -input.most, -1) end

if input.history then
  local times, reply = past_key('history'), {}
  for _, id in ipairs(input.ids
      or redis.call('ZREVRANGE', times, input.skip, input.skip + input.most - 1)) do
    local ended = redis.call('ZSCORE', times, id)
    local record = redis.call('HGET', past_key('histories'), id)
    if ended and record then
      reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = id, ended, record
    end
  end
  return reply
end

if not redis.call('HGET', META, 'run') then return 0 end
redis.call('HDEL', META, '')
local by, what, on, number = unpack(input.note)
local action = {NOW, readable(by), readable(what), readable(on), number}
local last = redis.call('LINDEX', past_key('actions'), -1)
local former = last and cmsgpack.unpack(last) or {0}
if NOW - former[1] < 60000000 and former[2] == action[2] and former[3] == action[3]
    and former[4] == action[4] then
  redis.call('RPOP', past_key('actions'))
  action[5] = action[5] + former[5]
end
past().append('actions', action, 1000)
return 1
