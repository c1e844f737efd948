-- How runs begin and end; for the scripts that have to do with that.
--
-- A run is `open` until it is `complete`. Before the next run begins, or when somebody wants to
-- forget the run, its rest is deleted in bounded steps (run/clear.lua), while the state is
-- `resetting`. Shard 0 keeps the state of the run; the other shards follow it. `began` is by the
-- clock of shard 0 on all of them: of two runs everybody knows the later one.
--
-- With several shards, shard 0 gives a number, each shard that has nothing left is `sealed` with
-- it, and shard 0 completes the run only if nobody has come by meanwhile. A worker that adds to a
-- sealed shard has to go by shard 0 first (run/reopen.lua), which breaks its seal.

-- On shard 0, when it is visited to seal the shards or to open one. It is its time, so that it also
-- grows if the last numbers are lost; but the clock may have gone back.
local function next_visit(last)
  local number = math.max(NOW, number_of(last) + 1)
  redis.call('HSET', META, 'visited', integer(number))
  return number
end

-- Deleted bit by bit by seen/sweep.lua; `base` is what stands behind "seen:".
local function throw_away(backend, base) redis.call('RPUSH', TRASH, backend .. ' ' .. base) end

-- Both generations of the dupefilter. A field of `meta` goes first, as in begin_reset().
local function throw_away_seen(meta)
  redis.call('HDEL', META, 'generation', 'older')
  for _, generation in ipairs({meta.generation, meta.older}) do
    throw_away(meta['config:backend'], generation)
  end
end

-- The exact set of a run's start requests, beside the dupefilter.
local function throw_away_starts(run)
  local base = run .. '.starts'
  if redis.call('EXISTS', seen_base(base)) == 1 then throw_away('exact', base) end
end

-- From now on every script of the run is told that it is lost.
local function begin_reset(meta)
  -- A first write that removes: works at maxmemory too.
  redis.call('HDEL', META, 'run', 'name', 'seeded', 'sealed', 'corrupt')
  redis.call('HSET', META, 'state', 'resetting')
  if meta.run then throw_away_starts(meta.run) end
end
