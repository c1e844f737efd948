-- Dead letters: requests that are given up, with the reason.
--
-- Include  shared/counts

-- Bytes of foreign data that are kept.
local MOST_FOREIGN = 65536

-- Keeps a dead letter, and drops the oldest past input.dead_max; but none is dropped for one that is
-- over a budget, of which a trap has more than all failures. `letter` has reason, detail, worker,
-- the id of the lease, which ends in when it was handed out, and perhaps error and status.
local function bury(slot, priority, entry, letter)
  local id, most = next_number('letters'), input.dead_max
  count('dead', 1)
  count('finished', 1)
  if most == 0 or letter.reason == 'budget' and redis.call('ZCARD', DEAD) >= most then return end
  local header = cmsgpack.pack({slot = readable(slot), priority = priority, reason = letter.reason,
    detail = letter.detail or '', worker = readable(letter.worker or ''), at = integer(NOW),
    error = letter.error or '', status = letter.status or 0,
    claimed = string.match(letter.lease or '', '%.(%d+)$') or '0',
    deliveries = deliveries_of(entry), foreign = letter.foreign or false})
  redis.call('HSET', LETTERS, id, struct.pack('>I4', #header) .. header .. entry)
  redis.call('ZADD', DEAD, id, id)
  -- Some more each time where `most` was lowered.
  local excess = math.min(redis.call('ZCARD', DEAD) - most, 10)
  if excess > 0 then
    local oldest = redis.call('ZRANGE', DEAD, 0, excess - 1)
    redis.call('ZREM', DEAD, unpack(oldest))
    redis.call('HDEL', LETTERS, unpack(oldest))
  end
end

-- A dead letter that nobody has enqueued: it was never counted as created.
local function count_foreign()
  count('created', 1)
  count('foreign', 1)
end

-- Makes a dead letter of something that is no entry, or no record; `where` it was found.
local function condemn(slot, data, where, worker)
  local size = #data > MOST_FOREIGN and ', ' .. #data .. ' bytes' or ''
  bury(slot, '0', string.sub(data, 1, MOST_FOREIGN), {reason = 'foreign', worker = worker,
    foreign = true,
    detail = 'not written by scrapy-redisq, found in ' .. readable(where) .. size})
  count_foreign()
end
