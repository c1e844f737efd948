-- In every script: the keys of a shard, the script's input, the time, and bounds.
--
-- KEYS[1]  the shard's meta key, redisq:{NAME:k}:meta; all other names derive from it, so they
--          share its hash tag and one shard is one hash slot of a Redis Cluster
-- KEYS[2]  a key that never exists: see scripts.Call.keys
-- ARGV[1]  one msgpack map, called `input` everywhere
--
--   meta            hash    format, the shared configuration, and the run: its id, name, state
--                           (open, complete or resetting), seeded (some worker has added all its
--                           start requests), began, left (when the last worker went), ended (us),
--                           generation of its dupefilter, the older one, seen_ttl (us) and
--                           rotates (us, when the generation does) with REDISQ_SEEN_TTL,
--                           inherits, keep_alive, keep_seen, max_pending, max_memory and feeds (of
--                           workers; feeds: JSON, keys), shards (that former runs had),
--                           sealed and visited (see shared/run_state.lua), begun:J (on shard 0:
--                           shard J has begun the run for good), sign and patient (see
--                           ms_until_dead()), behind (us, see CLOCK), stuck and retry (see
--                           shared/slots/backoff.lua), sampled (see shared/past.lua), release and
--                           settings (of the worker that joined last), limited (slots may have
--                           limits), limits_since (us: when the worker was started that has
--                           brought the limits), budgets (slots may have budgets), throttle (see
--                           shared/slots/state.lua), paused (us, since when the crawl is; on
--                           shard 0), corrupt (a key that was damaged, see shared/damage.lua)
--   ready           zset    slot -> when it may be claimed next (microseconds)
--   levels:SLOT     zset    priorities of the slot that have entries (score = -priority)
--   queue:SLOT:P    list    entries of a slot and priority, the next to be claimed leftmost
--   delayed         zset    "ID:" .. record -> when it is due (microseconds)
--   leases:WORKER   hash    lease id -> record
--   workers         zset    worker -> its deadline (microseconds; 0: it was taken for dead, and has
--                           leases that are to be reclaimed)
--   worker:WORKER   hash    host, pid, spider, since, ttl, seq, duplicates, starting, waiting,
--                           pages, items, looked (see run/look.lua), release, settings (a digest),
--                           report (JSON, of itself, on shard 0), told (by people, see orders.lua,
--                           on shard 0; this alone, for a day, of one that was taken for dead)
--   busy            hash    slot -> leases out
--   counts          hash    created, requeued, finished, dead, dropped, foreign (dead letters that
--                           nobody enqueued), duplicates, retried, claimed, leased, released,
--                           reclaimed, stale, starting, waiting, posted, what item pipelines
--                           did (sink_rows, sink_batches, sink_us, sink_retries, sink_refused),
--                           what workers did (pages, items, errors, status_NNN), exchanges that
--                           took at most so many microseconds, and more than the next lower bound
--                           (exchanges_N, exchanges_more), their microseconds (exchanges_us),
--                           Scrapy's stats of all workers (stat:NAME, on shard 0), and the last
--                           number given to a dead letter (letters) and to a delayed entry (delays)
--   dead            zset    id of a dead letter -> its number, which is the same
--   letters         hash    id of a dead letter -> 4 bytes length of header, header, entry
--   limits          hash    pattern of slots -> limit, see shared/slots/limits.lua
--   taken           hash    slot with a budget -> requests that the run has taken in
--   aside           zset    slot that is set aside -> since when (microseconds)
--   paused          zset    slot that a person has paused -> since when (microseconds)
--   ruled           zset    slot that a person has given a limit -> since when (microseconds)
--   slot:SLOT       hash    what is known of a slot, see shared/slots/state.lua; expires when
--                           nothing happens, unless a person has said something about the slot
--   tokens:WORKER   hash    slot -> downloads that the worker may have at a time
--   robots          hash    host -> "text" .. its robots.txt, compressed, or "lock"
--   robots_until    zset    host -> when that expires (microseconds)
--   seen:RUN...     varies  the dupefilter; RUN, its generation, is the run that began it (and
--                           RUN.TIME one that was rotated, see rotate()), or "alone" of one
--                           without this scheduler. seen:RUN.starts... has the identities of the
--                           run's start requests, see new_starts()
--   seen:recent:N   set     identities that were asked about lately (N: 0 or 1), see new_recent()
--   post            zset    id of a post -> when any worker may take it (us), see shared/post.lua
--   posted          hash    id of a post -> what it is: links to other shards
--   trash           list    "BACKEND BASE" for each set seen:BASE that waits to be deleted
--   ended           zset    name (REDISQ_RUN) of a run that is complete -> when it was (us)
--   series:SECONDS  list    samples of the counts, one in so many s, see shared/past.lua
--   marks           list    what happened to the fleet, see shared/past.lua
--   actions         list    what people have done, see shared/past.lua
--   history         zset    what a request that is finished is known by -> when it was (us)
--   histories       hash    the same -> msgpack map of what became of it, see worker/page.py
--
-- With REDISQ_LIMITS_NAME aside, paused, ruled, slot:SLOT and tokens:WORKER begin with
-- redisq:limits:{NAME}: instead, for all crawls of that name. So do two keys more: `workers` (zset,
-- as above, of these crawls) and `clock` (hash with `sign` and `behind`, of all these crawls).

local PREFIX = string.sub(KEYS[1], 1, -5)
local META, COUNTS, READY = KEYS[1], PREFIX .. 'counts', PREFIX .. 'ready'
local DELAYED, BUSY, WORKERS = PREFIX .. 'delayed', PREFIX .. 'busy', PREFIX .. 'workers'
local DEAD, LETTERS = PREFIX .. 'dead', PREFIX .. 'letters'
local POST, POSTED = PREFIX .. 'post', PREFIX .. 'posted'
local TRASH, ENDED = PREFIX .. 'trash', PREFIX .. 'ended'
local ROBOTS, ROBOTS_UNTIL = PREFIX .. 'robots', PREFIX .. 'robots_until'
local LIMITS, TAKEN = PREFIX .. 'limits', PREFIX .. 'taken'
local WAKE_CHANNEL = PREFIX .. 'wake'

local function leases_of(worker) return PREFIX .. 'leases:' .. worker end
local function worker_key(worker) return PREFIX .. 'worker:' .. worker end
local function levels_of(slot) return PREFIX .. 'levels:' .. slot end
local function queue_of(slot, priority) return PREFIX .. 'queue:' .. slot .. ':' .. priority end
local function seen_base(generation) return PREFIX .. 'seen:' .. generation end
local function past_key(name) return PREFIX .. name end -- series:10, marks...

local input = cmsgpack.unpack(ARGV[1])

-- How much one call does at most before Redis serves other clients: bytes of entries that it moves;
-- values in one command, of which Redis allows about 8,000.
local MOST_BYTES, CHUNK = 4000000, 200

-- Calls f(first, last) for the chunks of 1..n.
local function in_chunks(n, f)
  for first = 1, n, CHUNK do f(first, math.min(first + CHUNK - 1, n)) end
end

-- Microseconds since 1970, by a clock that never goes back. If the server's clock does, or another
-- server takes over whose clock is `behind`, NOW goes on from the last `sign` of life. Without that
-- nothing would be due, and nobody dead, before the server's clock is there again. Crawls that
-- share their slots have one CLOCK, or they would misread each other's times.
local SERVER_TIME, BEHIND, NOW
-- Where slots, tokens and a person's rules are. SHARED: with those of other crawls.
local SLOTS, SHARED, CLOCK = PREFIX, false, META
do
  local time = server.call('TIME')
  local own = redis.call('HMGET', META, 'sign', 'behind', 'config:limits_name')
  local name, clock = own[3] or input.config and input.config.limits_name or '', own
  if name ~= '' then
    SLOTS, SHARED = 'redisq:limits:{' .. name .. '}:', true
    CLOCK = SLOTS .. 'clock'
    clock = redis.call('HMGET', CLOCK, 'sign', 'behind')
  end
  SERVER_TIME, BEHIND = tonumber(time[1]) * 1000000 + tonumber(time[2]), number_of(clock[2])
  NOW = math.max(SERVER_TIME + BEHIND, number_of(clock[1]), number_of(own[1]))
end

local ASIDE, PAUSED, RULED = SLOTS .. 'aside', SLOTS .. 'paused', SLOTS .. 'ruled'
local ALL_WORKERS = SLOTS .. 'workers' -- of all crawls that share the slots
local function slot_key(slot) return SLOTS .. 'slot:' .. slot end
local function tokens_key(worker) return SLOTS .. 'tokens:' .. worker end
