-- How runs begin and end; for the scripts that have to do with that.
--
-- A run is `open` until it is `complete`; then, or when somebody wants to forget it, what is left
-- of it is deleted in bounded steps (run/clear.lua) while the state is `resetting`, and the next
-- run begins on an empty shard. Shard 0 keeps the state of the run; the other shards follow it.
-- `began` is by the clock of shard 0 on all of them, so that of two runs everybody knows the later
-- one.
--
-- A run is complete when nothing is left on any shard and nobody is there. With several shards,
-- shard 0 gives a number (its time, but never one twice or a smaller one), each shard that has
-- nothing left is `sealed` with it, and shard 0 completes the run only if nobody has come by
-- meanwhile. A worker that adds to a sealed shard has to go by shard 0 first (run/open.lua),
-- which breaks its seal. So nothing is ever added to a shard that was looked at, without shard 0
-- knowing.
--
-- Include  shared/keys shared/texts shared/clock

-- Names of runs that are complete and never begin again.
local MOST_ENDED = 1000

-- Exact sets of one run, seen:RUN.NAME, beside the dupefilter: deleted when the next run begins.
local SETS_OF_A_RUN = {'starts'}

local function hash_of(key)
  local hash, fields = {}, redis.call('HGETALL', key)
  for i = 1, #fields, 2 do hash[fields[i]] = fields[i + 1] end
  return hash
end

local function meta_of_run()
  local meta = hash_of(META)
  if meta.run and not meta.state then meta.state = 'open' end -- somebody has deleted the field
  return meta
end

-- On shard 0, when it is visited to seal the shards or to open one. It is its time, so that it also
-- grows if the last numbers are lost; but the clock may have gone back.
local function next_visit(last)
  local number = math.max(NOW, number_of(last) + 1)
  redis.call('HSET', META, 'visited', integer(number))
  return number
end

-- Nothing of a run waits here, and no worker is registered.
local function is_empty() return redis.call('EXISTS', READY, DELAYED, WORKERS, BUSY, POST) == 0 end

-- Deleted bit by bit by seen/sweep.lua; `base` is what stands behind "seen:".
local function throw_away(backend, base) redis.call('RPUSH', TRASH, backend .. ' ' .. base) end

local function throw_away_sets(run)
  for _, name in ipairs(SETS_OF_A_RUN) do
    local base = run .. '.' .. name
    if redis.call('EXISTS', seen_base(base)) == 1 then throw_away('exact', base) end
  end
end

-- From now on every script of the run is told that it is lost.
local function begin_reset(meta)
  -- A first write that removes: works at maxmemory too.
  redis.call('HDEL', META, 'run', 'name', 'seeded', 'sealed', 'corrupt')
  redis.call('HSET', META, 'state', 'resetting')
  if meta.run then throw_away_sets(meta.run) end
end
