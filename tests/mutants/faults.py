"""The list: each is one line removed or turned round, and the tests that must turn red by it."""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOL = "tests/protocol/test_protocol.py tests/protocol/test_protocol_machine.py"
RUNS = "tests/protocol/test_runs.py"
LOGS = "tests/protocol/test_several_logs.py"
LIMITS = "tests/crawls/test_limits.py"
KEPT = "tests/protocol/test_kept.py"
IDENTITY = "tests/crawls/test_identity.py tests/crawls/test_crawl.py"
BATCH = "tests/sinks/test_batch.py"
WRITER = "tests/sinks/test_writer.py"
DOUBT = "tests/sinks/test_doubt.py"
LOST = "tests/sinks/test_lost_connections.py"
WAITING = "tests/sinks/test_waiting.py"

RUN_SESSION = "tests/protocol/test_run_session.py"
SENTINELS = "tests/server/test_sentinel.py"


@dataclass(frozen=True)
class Mutant:
    """In ``path`` (of the package), ``old`` becomes ``new``; ``tests`` are pytest's arguments."""

    path: str
    old: str
    new: str
    tests: str

    @property
    def name(self) -> str:
        """For people, and to choose it by."""
        return f"{self.path}: {' '.join(self.old.split())[:60]}"

    def apply(self, text: str) -> str:
        """The text with the fault. Raises `ValueError` unless ``old`` is there once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path}: {self.old!r} is there {text.count(self.old)} times")
        return text.replace(self.old, self.new)


EXCHANGE = "frontier/lua/exchange.lua"
JOIN = "frontier/lua/run/join.lua"
REAP = "frontier/lua/run/reap.lua"
LEAVE = "frontier/lua/run/leave.lua"
COMPLETE = "frontier/lua/run/complete.lua"
CLEAR = "frontier/lua/run/clear.lua"
SHARED = "frontier/lua/shared/"
CLAIM = SHARED + "claim.lua"
TURNS = SHARED + "slots/turns.lua"
BACKOFF = SHARED + "slots/backoff.lua"
SENTINEL = "server/sentinel/server.py"
ROBOTS = "frontier/lua/robots.lua"

MUTANTS = [
    # What workers are told
    Mutant("frontier/shard_task.py", "demand.low or demand.rests", "demand.low", RUN_SESSION),
    # Several logs
    Mutant(EXCHANGE, "if input.posts then keep_posts(input.posts, input.hold) end", "", LOGS),
    Mutant("frontier/operations.py", "if post.unsafe == 0:", "if True:", LOGS),
    Mutant("frontier/unsafe.py", "self._spread and self._of_nobody > 0", "False", LOGS),
    Mutant("frontier/shard_session.py", "waiting > 0 or is_news", "waiting > 0", RUN_SESSION),
    Mutant("frontier/shard_session.py", "self.unsafe.proof_at", "0.0", RUN_SESSION),
    Mutant(
        "frontier/run_session.py",
        "shard_task.exchange(session, NOTHING)",
        "shard_task._exchange(session, NOTHING)",
        RUN_SESSION,
    ),
    Mutant(
        SHARED + "workers.lua",
        "redis.call('EXISTS', READY, DELAYED, POST)",
        "redis.call('EXISTS', READY, DELAYED)",
        LOGS,
    ),
    Mutant(
        COMPLETE,
        "redis.call('EXISTS', READY, DELAYED, POST)",
        "redis.call('EXISTS', READY, DELAYED)",
        LOGS,
    ),
    Mutant(
        "frontier/lua/run/look.lua",
        "idle = idle and redis.call('HGET', known, 'looked') == input.marked",
        "",
        LOGS,
    ),
    Mutant(JOIN, "if input.begun then return 'shard_lost' end", "", LOGS),
    Mutant(JOIN, "if goes_on then inherits = 'all' end", "", LOGS),
    Mutant("control/dead_letters.py", "-1 if shard else self._run", "self._run", LOGS),
    Mutant(
        "frontier/lua/post/take.lua", "redis.call('ZADD', POST, NOW + input.hold, id)", "", LOGS
    ),
    # The exchange
    Mutant(EXCHANGE, "if seq < input.acked then return {'rewound'} end", "", PROTOCOL),
    Mutant(EXCHANGE, "local replayed = seq > input.acked", "local replayed = false", PROTOCOL),
    Mutant("frontier/outgoing.py", "size += _size(self._unsent[0])", "size += 0", PROTOCOL),
    Mutant(
        "server/sentinel/finder.py",
        "view.epoch >= self._epoch for view in views",
        "True for view in views",
        SENTINELS,
    ),
    Mutant(
        "server/sentinel/finder.py",
        "majority and latest >= self._epoch",
        "majority",
        SENTINELS,
    ),
    Mutant(
        EXCHANGE,
        "if not seq or not is_member(worker) then",
        "if not seq then",
        PROTOCOL,
    ),
    Mutant(
        EXCHANGE,
        "if meta.run ~= input.run then return {'lost'} end",
        "",
        f"{PROTOCOL} {RUNS}",
    ),
    Mutant(EXCHANGE, "local full = sign_of_life(worker)", "local full = false", PROTOCOL),
    Mutant(
        EXCHANGE,
        "if meta.sealed and input.enqueue and not replayed then return {'sealed'} end",
        "",
        RUNS,
    ),
    Mutant(
        SHARED + "leases.lua",
        "request and slot_of(slot).fails >= 2",
        "false",
        "tests/crawls/test_backoff.py",
    ),
    Mutant(
        SHARED + "queues.lua",
        "redis.call('ZREM', DELAYED, member)",
        "",
        PROTOCOL,
    ),
    Mutant(
        CLAIM,
        "suffix = '.' .. integer(NOW)",
        "suffix = '.0'",
        PROTOCOL,
    ),
    Mutant(
        EXCHANGE,
        "if added > 0 or news then wake(counts, news) end",
        "",
        f"{PROTOCOL} tests/control/test_frontier.py",
    ),
    Mutant(
        CLAIM,
        "return math.min(others, math.floor((input.want + NOW % 2) / 2))",
        "return 0",
        f"{LIMITS} tests/crawls/test_fleet_limits.py",
    ),
    # What scripts share
    Mutant(
        SHARED + "workers.lua",
        "if redis.call('EXISTS', READY, DELAYED, POST) > 0 then return false end",
        "if redis.call('EXISTS', READY) > 0 then return false end",
        PROTOCOL,
    ),
    Mutant(
        SHARED + "workers.lua",
        "redis.call('HGET', worker_key(worker), 'starting') == '1' or leases_held",
        "leases_held",
        PROTOCOL,
    ),
    Mutant(
        SHARED + "workers.lua",
        "if patient and patient - NOW <= ttl then deadline = math.max(deadline, patient) end",
        "",
        PROTOCOL,
    ),
    # Runs
    Mutant(
        JOIN,
        "if has_ended and not (mine and (meta.state == 'open' or input.keep_alive)) "
        "then return 'over' end",
        "",
        RUNS,
    ),
    Mutant(
        JOIN,
        "return NOW >= time and input.since < time",
        "return false",
        RUNS,
    ),
    Mutant(
        JOIN,
        "if ms_until_dead(meta.sign, meta.patient) > 0 then return 'wait' end",
        "",
        RUNS,
    ),
    Mutant(
        JOIN,
        "if meta.run then throw_away_starts(meta.run) end",
        "",
        f"{RUNS} {PROTOCOL}",
    ),
    Mutant(REAP, "fence(worker)", "", PROTOCOL),
    Mutant(SHARED + "leases.lua", "+ (died and 1 or 0)", "", PROTOCOL),
    Mutant(LEAVE, "return_tokens(input.worker)", "", LIMITS),
    Mutant(SHARED + "leases.lua", "put_back(back)", "", PROTOCOL),
    Mutant(
        COMPLETE,
        "if live_workers() > 0 or redis.call('EXISTS', READY, DELAYED, POST) > 0 then",
        "if live_workers() > 0 then",
        RUNS,
    ),
    Mutant(
        COMPLETE,
        "if input.first and (shards == 1 or input.seal > 0) then",
        "if input.first then",
        RUNS,
    ),
    Mutant(
        CLEAR,
        "if not input.mark and number_of(meta.began) >= input.before then return {'done', '0'} end",
        "",
        RUNS,
    ),
    Mutant(
        "frontier/lua/dead/take.lua",
        "or redis.sha1hex(letter) ~= digest",
        "",
        "tests/control/test_frontier.py",
    ),
    # Politeness
    Mutant(
        TURNS,
        "state.last = math.max(state.last, state.ends)",
        "",
        LIMITS,
    ),
    Mutant(
        TURNS,
        "if state.ends > NOW then return look_again(slot, state.ends) end",
        "",
        LIMITS,
    ),
    Mutant(
        TURNS,
        "if left >= 0 then set_tokens(worker, slot, state, tokens) else most = 0 end",
        "set_tokens(worker, slot, state, tokens)",
        LIMITS,
    ),
    Mutant(
        BACKOFF,
        "local is_news = NOW - since >= state.failed",
        "local is_news = true",
        "tests/crawls/test_backoff.py",
    ),
    Mutant(
        SHARED + "slots/state.lua",
        "return state.fails > 0 and 1 or state.limit.concurrency end",
        "return state.limit.concurrency end",
        "tests/crawls/test_backoff.py",
    ),
    Mutant(
        "worker/politeness/gate.py",
        "return None if is_full and judge.in_doubt(slot) else number",
        "return number",
        "tests/crawls/test_backoff.py",
    ),
    Mutant(
        "worker/politeness/gate.py",
        "self._turns.suspend(slot, 0.0)",
        "pass",
        LIMITS,
    ),
    Mutant(
        BACKOFF,
        "state.parked = math.max(state.parked, NOW + math.max(0, asked))",
        "",
        "tests/crawls/test_backoff.py",
    ),
    Mutant(
        ROBOTS,
        "keep('lock', LOCK)",
        "",
        "tests/crawls/test_robots.py",
    ),
    Mutant(
        "worker/politeness/turns.py",
        "return start - now if start < self.ends else NOT_NOW",
        "return start - now",
        LIMITS,
    ),
    Mutant(
        "worker/politeness/turns.py",
        "is_over and (free or not self._has_more(slot))",
        "is_over",
        LIMITS,
    ),
    Mutant(
        "worker/politeness/gate.py",
        "told = replace(told, failed=None)",
        "pass",
        "tests/crawls/test_robots.py",
    ),
    Mutant(
        "middlewares/retry.py",
        "retry.meta[DELAY_KEY] = pause",
        "",
        "tests/crawls/test_retry.py",
    ),
    # One worker
    Mutant(
        "frontier/outgoing.py",
        "self._unsent.extendleft(reversed(self.in_flight.operations))",
        "",
        f"{PROTOCOL} tests/control/test_frontier.py",
    ),
    Mutant(
        "frontier/unsafe.py",
        "again = [kept for _, kept in self._kept]",
        "again: list[Enqueue | Letter] = []",
        f"{PROTOCOL} {IDENTITY}",
    ),
    Mutant(
        "frontier/shard_session.py",
        "reply.leases = [lease for lease in reply.leases if lease.id not in self.held]",
        "",
        PROTOCOL,
    ),
    Mutant(
        COMPLETE,
        "ms_until_dead(meta.sign, meta.patient, math.max(longest, 1000000)) > 0",
        "false",
        RUNS,
    ),
    Mutant(
        "frontier/run_session.py",
        "sent = had_nothing_left and not self.waiting()",
        "sent = had_nothing_left",
        RUN_SESSION,
    ),
    Mutant("worker/kept.py", "page.holder.waits_for += 1", "pass", KEPT),
    Mutant("worker/kept.py", "holder.give_back()", "pass", KEPT),
    Mutant(
        "worker/kept.py", "if problem is not None and holder.problem is None:", "if False:", KEPT
    ),
    Mutant(
        "worker/kept.py",
        "if closing or (page.holder in anothers and page.asked_again):",
        "if closing:",
        KEPT,
    ),
    Mutant("worker/kept.py", "self._known.difference_update(fingerprints)", "pass", KEPT),
    Mutant("worker/kept.py", "self._known.clear()", "pass", KEPT),
    Mutant(
        "worker/kept.py", "self.left_start |= page.asked_again and holder is None", "pass", KEPT
    ),
    Mutant(
        SHARED + "enqueue.lua",
        "or item[ASKED] == 2 and recent",
        "",
        IDENTITY,
    ),
    Mutant(
        "worker/in_progress.py",
        "ended = [request for request, page in self._unwritten.items() if not page.waits_for]",
        "ended = list(self._unwritten)",
        "tests/sinks/test_batch.py tests/sinks/test_redis.py",
    ),
    Mutant(
        "worker/in_progress.py",
        "if isinstance(failure.value, CloseSpider):",
        "if False:",
        "tests/crawls/test_ends.py",
    ),
    Mutant(
        "serialization/identity.py",
        "return marked, repeats.number(fingerprint + marked)",
        "return marked, 0",
        "tests/crawls/test_identity.py",
    ),
    # Sinks
    Mutant(
        "pipelines/rows.py",
        "return _digest(spider, identity.hex(), callback, str(number))",
        "return _digest(spider, identity.hex(), callback)",
        f"{BATCH} tests/sinks/test_database.py",
    ),
    Mutant(
        "pipelines/batch.py",
        " or (pages is not None and pages.lacks_files(page))",
        "",
        "tests/crawls/test_ends.py",
    ),
    Mutant(
        "pipelines/database/upsert.py",
        "before[key(values)] += 1",
        "pass",
        WRITER,
    ),
    Mutant(
        "pipelines/database/upsert.py",
        "guard = stored.is_(None) | (stored <= insert.excluded[target.version])",
        "guard = stored <= insert.excluded[target.version]",
        WRITER,
    ),
    Mutant(
        "pipelines/database/upsert.py",
        "if target.also_unique:",
        "if False:",
        WRITER,
    ),
    Mutant("pipelines/writer.py", "elif len(piece) > 1:", "elif False:", WAITING),
    Mutant(
        "pipelines/writer.py", "except BaseException as error:", "except OSError as error:", WAITING
    ),
    Mutant(
        "pipelines/writer.py",
        "while self._waiting or self.doubts or not self._closing:",
        "while self._waiting or not self._closing:",
        WAITING,
    ),
    Mutant(
        "pipelines/writer.py",
        "losses = losses + 1 if isinstance(error, (ConnectionLost, RowLocked)) else 0",
        "losses = 0",
        LOST,
    ),
    Mutant(
        "pipelines/writer.py",
        "proof = self.doubts.answers and counts",
        "proof = False",
        WAITING,
    ),
    Mutant(
        "pipelines/writer.py",
        "return self._worker.finds_nothing()",
        "return True",
        WAITING,
    ),
    Mutant(
        "pipelines/writer.py",
        "if error.at_commit:",
        "if False:",
        LOST,
    ),
    Mutant(
        "pipelines/database/pipeline.py", "write_nothing(connection, row.record)", "pass", DOUBT
    ),
    # Several servers
    Mutant(
        "frontier/run_session.py",
        "if complete and not self._certain and may_end:",
        "if False:",
        RUN_SESSION,
    ),
    Mutant(
        "frontier/shard_task.py",
        "await session.run_session.confirm_primary()",
        "",
        RUN_SESSION,
    ),
    Mutant(
        "frontier/unsafe.py",
        "min(time.monotonic(), self._primary_vouched())",
        "time.monotonic()",
        RUN_SESSION,
    ),
    Mutant(SENTINEL, "if 2 * len(views) <= voters:", "if False:", SENTINELS),
    Mutant(SENTINEL, "if 2 * naming <= voters:", "if False:", SENTINELS),
    Mutant(SENTINEL, "if there < wanted:", "if False:", SENTINELS),
    # Clusters
    Mutant(
        "server/cluster/hash_slots.py",
        "sure = 2 * votes > len(masters)",
        "sure = votes > 0",
        "tests/unit/test_hash_slots.py",
    ),
    Mutant(
        "server/cluster/hash_slots.py",
        'if "cluster_state:ok" not in _text(told):',
        "if not told:",
        "tests/unit/test_hash_slots.py",
    ),
    Mutant(
        "server/cluster/hash_slots.py",
        "self._heard[step.node] = -self._clock()",
        "self._heard[step.node] = 0.0",
        "tests/unit/test_hash_slots.py",
    ),
]
