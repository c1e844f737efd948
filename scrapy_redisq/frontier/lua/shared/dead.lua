-- Dead letters: requests that are given up, with the reason.
--
-- Include  shared/keys shared/texts shared/clock shared/counts shared/records

-- Bytes of what is foreign that are kept.
local MOST_FOREIGN = 65536

-- Keeps a dead letter and drops the oldest past `most`; `letter` has reason, detail, worker, the
-- id of the lease, which ends in when it was handed out, and perhaps error and status.
local function bury(slot, priority, entry, letter, most)
  count('dead', 1)
  local id = next_number('letters')
  if most == 0 then return end
  local header = cmsgpack.pack({slot = readable(slot), priority = priority, reason = letter.reason,
    detail = letter.detail or '', worker = readable(letter.worker or ''), at = integer(NOW),
    error = letter.error or '', status = letter.status or 0,
    claimed = string.match(letter.lease or '', '%.(%d+)$') or '0',
    deliveries = deliveries_of(entry), foreign = letter.foreign or false})
  local value = struct.pack('>I4', #header) .. header .. entry
  if redis.call('HSETNX', LETTERS, id, value) == 0 then -- the counter was set back
    id = integer(tonumber(redis.call('ZRANGE', DEAD, -1, -1, 'WITHSCORES')[2] or 0) + 1)
    redis.call('HSET', LETTERS, id, value)
    redis.call('HSET', COUNTS, 'letters', id)
  end
  redis.call('ZADD', DEAD, id, id)
  -- Some more each time where `most` was lowered.
  local excess = math.min(redis.call('ZCARD', DEAD) - most, 10)
  if excess > 0 then
    local oldest = redis.call('ZRANGE', DEAD, 0, excess - 1)
    redis.call('ZREM', DEAD, unpack(oldest))
    redis.call('HDEL', LETTERS, unpack(oldest))
  end
end

-- Dead letters of what nobody has enqueued, so that it was never counted as created.
local function count_foreign(n)
  count('created', n)
  count('foreign', n)
end

-- Makes a dead letter of something that is no entry, or no record; `where` it was found.
local function condemn(slot, data, where, most, worker)
  local size = #data > MOST_FOREIGN and ', ' .. #data .. ' bytes' or ''
  bury(slot, '0', string.sub(data, 1, MOST_FOREIGN), {reason = 'foreign', worker = worker,
    foreign = true,
    detail = 'not written by scrapy-redisq, found in ' .. readable(where) .. size}, most)
  count_foreign(1)
  count('finished', 1)
end
