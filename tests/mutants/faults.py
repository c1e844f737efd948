"""The list: each is one line removed or turned round, and the tests that must turn red by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PROTOCOL = "tests/protocol/test_protocol.py"
RUNS = "tests/protocol/test_runs.py"
LOGS = "tests/protocol/test_several_logs.py"
LIMITS = "tests/crawls/test_limits.py"
KEPT = "tests/protocol/test_kept.py"
IDENTITY = "tests/crawls/test_identity.py tests/crawls/test_crawl.py"
BATCH = "tests/sinks/test_batch.py"
WRITER = "tests/sinks/test_writer.py"
DOUBT = "tests/sinks/test_doubt.py"
WAITING = "tests/sinks/test_waiting.py"
FRONTIER = "tests/control/test_frontier.py"
BACKED_OFF = "tests/crawls/test_backoff.py"
ENDS = "tests/crawls/test_ends.py"
SESSIONS = "tests/crawls/test_sessions.py"

RUN_SESSION = "tests/protocol/test_run_session.py"
SENTINELS = "tests/server/test_sentinel.py"
MIGRATE = "tests/control/test_migrate.py"


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
SHARED_LIMITS = "tests/crawls/test_shared_limits.py"
SENTINEL = "server/sentinel/server.py"
ROBOTS = "frontier/lua/robots.lua"
GATE = "worker/politeness/gate.py"


def _of(path: str, tests: str, *changes: str | tuple[str, str]) -> Iterator[Mutant]:
    """Mutants of one file: what is removed from it, or (what is there, what takes its place)."""
    for change in changes:
        old, new = (change, "") if isinstance(change, str) else change
        yield Mutant(path, old, new, tests)


MUTANTS = [
    *_of(
        "frontier/shard_task.py",
        RUN_SESSION,
        ("demand.low or demand.rests", "demand.low"),
        "await session.run_session.confirm_primary()",
    ),
    *_of("frontier/pace.py", RUN_SESSION, ("if self.is_uncertain:", "if False:")),
    *_of(EXCHANGE, LOGS, "if input.posts then keep_posts(input.posts, input.hold) end"),
    *_of(
        EXCHANGE,
        PROTOCOL,
        "if seq < input.acked then return {'rewound'} end",
        ("local replayed = seq > input.acked", "local replayed = false"),
        ("if not seq or not is_member(worker) then", "if not seq then"),
        ("local full = sign_of_life(worker)", "local full = false"),
    ),
    *_of(EXCHANGE, f"{PROTOCOL} {RUNS}", "if meta.run ~= input.run then return {'lost'} end"),
    *_of(
        EXCHANGE,
        RUNS,
        "if meta.sealed and input.enqueue and not replayed then return {'sealed'} end",
    ),
    *_of(EXCHANGE, f"{PROTOCOL} {FRONTIER}", "if added > 0 or news then wake(counts, news) end"),
    *_of("frontier/operations.py", LOGS, ("if post.unsafe == 0:", "if True:")),
    *_of("frontier/resend.py", LOGS, ("self._spread and self._of_nobody > 0", "False")),
    *_of(
        "frontier/resend.py",
        f"{PROTOCOL} {IDENTITY}",
        ("again = [kept for _, kept in self._kept]", "again: list[Enqueue | Letter] = []"),
    ),
    *_of(
        "frontier/resend.py",
        "tests/unit/test_resend.py",
        ("min(time.monotonic(), self._primary_vouched())", "time.monotonic()"),
    ),
    *_of(
        "frontier/shard_session.py",
        RUN_SESSION,
        ("waiting > 0 or is_news", "waiting > 0"),
        ("-math.inf if busy else run.proof_at()", "-math.inf"),
    ),
    *_of(
        "frontier/resend.py",
        "tests/server/test_on_a_cluster.py",
        ("return proof_at if proof_at <= now else", "return"),
    ),
    *_of(
        "frontier/shard_task.py",
        "tests/simulation/test_simulation.py::test_crawls",
        (" and not run.worker.is_busy()\n", "\n"),
    ),
    *_of(
        "frontier/shard_session.py",
        "tests/protocol/test_defence.py",
        "reply.leases = [lease for lease in reply.leases if lease.id not in self.held]",
    ),
    *_of(
        "frontier/run_session.py",
        RUN_SESSION,
        ("shard_task.exchange(session, NOTHING)", "shard_task._exchange(session, NOTHING)"),
        (
            "sent = is_last and all_answered and not self.waiting()",
            "sent = is_last and all_answered",
        ),
        ("not (self.joined.config.has_several_logs and self.waiting())", "True"),
        ("if complete and not self._certain and may_end:", "if False:"),
        ("if not self._certain:  # told", "if False:  # told"),
    ),
    *_of(
        SHARED + "workers.lua",
        LOGS,
        ("redis.call('EXISTS', READY, DELAYED, POST)", "redis.call('EXISTS', READY, DELAYED)"),
    ),
    *_of(
        SHARED + "workers.lua",
        PROTOCOL,
        (
            "if redis.call('EXISTS', READY, DELAYED, POST) > 0 then return false end",
            "if redis.call('EXISTS', READY) > 0 then return false end",
        ),
        ("redis.call('HGET', worker_key(worker), 'starting') == '1' or leases_held", "leases_held"),
        "if patient and patient - NOW <= ttl then deadline = math.max(deadline, patient) end",
    ),
    *_of(
        COMPLETE,
        LOGS,
        ("redis.call('EXISTS', READY, DELAYED, POST)", "redis.call('EXISTS', READY, DELAYED)"),
    ),
    *_of(
        COMPLETE,
        RUNS,
        (
            "if live_workers() > 0 or redis.call('EXISTS', READY, DELAYED, POST) > 0 then",
            "if live_workers() > 0 then",
        ),
        ("if input.first and (shards == 1 or input.seal > 0) then", "if input.first then"),
        ("ms_until_dead(meta.sign, meta.patient, math.max(longest, 1000000)) > 0", "false"),
    ),
    *_of(
        "frontier/lua/run/look.lua",
        LOGS,
        "idle = idle and redis.call('HGET', known, 'looked') == input.marked",
    ),
    *_of(
        JOIN,
        LOGS,
        ("input.begun or not (meta", "not (meta"),
        ("'since ' .. integer(input.origin)", "''"),
    ),
    *_of(
        JOIN,
        RUNS,
        "if has_ended and not (mine and (meta.state == 'open' or input.keep_alive)) "
        "then return 'over' end",
        (
            "return NOW == SERVER_TIME + BEHIND and NOW >= time and input.since < time",
            "return false",
        ),
        "if ms_until_dead(meta.sign, meta.patient) > 0 then return 'wait' end",
        ("(intent == 'crawl' or not meta.name)", "true"),
        "if not keeps_seen then throw_away_seen(meta) end",
        (" or not (meta.state or is_empty) then", " then"),
    ),
    *_of(JOIN, RUNS, ("if input.limits and brings then", "if input.limits then")),
    *_of(JOIN, f"{RUNS} {PROTOCOL}", "if meta.run then throw_away_starts(meta.run) end"),
    *_of("control/dead_letters.py", LOGS, ("-1 if shard else self._run", "self._run")),
    *_of("frontier/lua/post/take.lua", LOGS, "redis.call('ZADD', POST, NOW + input.hold, id)"),
    *_of("frontier/outgoing.py", PROTOCOL, ("size += _size(self._unsent[0])", "size += 0")),
    *_of(
        "frontier/outgoing.py",
        f"{PROTOCOL} {FRONTIER}",
        "self._unsent.extendleft(reversed(self.in_flight.operations))",
    ),
    *_of(
        "server/sentinel/finder.py",
        SENTINELS,
        ("view.epoch >= self._epoch for view in views", "True for view in views"),
        ("majority and latest >= self._epoch", "majority"),
    ),
    *_of(SHARED + "leases.lua", BACKED_OFF, ("request and slot_of(slot).fails >= 2", "false")),
    *_of(SHARED + "leases.lua", PROTOCOL, "+ (died and 1 or 0)", "put_back(back)"),
    *_of(SHARED + "queues.lua", PROTOCOL, "redis.call('ZREM', DELAYED, member)"),
    *_of(CLAIM, PROTOCOL, ("suffix = '.' .. integer(NOW)", "suffix = '.0'")),
    *_of(CLAIM, LIMITS, "if n_claimed + #open >= input.want then break end"),
    *_of(
        CLAIM,
        f"{LIMITS} tests/crawls/test_fleet_limits.py",
        ("return math.min(others, math.floor((input.want + NOW % 2) / 2))", "return 0"),
    ),
    *_of(
        CLAIM,
        "tests/control/test_slots.py",
        "for _, slot in ipairs(redis.call('HKEYS', tokens_key(input.worker))) "
        "do slots[slot] = true end",
    ),
    *_of(REAP, PROTOCOL, "fence(worker)"),
    *_of(JOIN, LOGS, ("is_before = origin and number_of(meta.began) < origin", "")),
    *_of(LEAVE, LIMITS, "return_tokens(input.worker)"),
    *_of(
        CLEAR,
        RUNS,
        "if not input.mark and number_of(meta.began) >= input.before then return {'done', '0'} end",
        ("math.max(NOW, number_of(meta.began) + 1)", "NOW"),
    ),
    *_of("frontier/lua/dead/take.lua", FRONTIER, "or redis.sha1hex(letter) ~= digest"),
    *_of(
        TURNS,
        LIMITS,
        "state.last = math.max(state.last, state.ends)",
        ("if state.ends > NOW then\n      keep_place", "if false then\n      keep_place"),
    ),
    *_of(
        TURNS,
        SHARED_LIMITS,
        ("return not SHARED or state.line == TAG end", "return true end"),
        "if not ours and state.short > NOW then left = -had end",
        ("if SHARED and ours and state.served == 0 then", "if SHARED and ours then"),
        ("if not ours and not may_pass then", "if not ours then"),
        ("not redis.call('ZSCORE', READY, slot) then leave_line(state, TAG) end", "false then end"),
    ),
    *_of(SHARED + "slots/state.lua", LIMITS, ("is_ahead and TIMES or {}", "{}")),
    *_of(REAP, SHARED_LIMITS, ("return_tokens(worker)\nend", "end")),
    *_of(
        JOIN,
        SHARED_LIMITS,
        ("local shares = input.config.limits_name ~= ''", "local shares = SHARED"),
    ),
    *_of(
        SHARED + "keys.lua",
        SHARED_LIMITS,
        (", number_of(clock[1]), number_of(own[1]))", ", number_of(own[1]))"),
    ),
    *_of(
        TURNS,
        "tests/control/test_slots.py",
        (
            "if left >= 0 then set_tokens(worker, slot, state, tokens) else most = 0 end",
            "set_tokens(worker, slot, state, tokens)",
        ),
    ),
    *_of(
        BACKOFF, BACKED_OFF, ("local is_news = NOW - since >= state.failed", "local is_news = true")
    ),
    *_of(
        BACKOFF,
        "tests/control/test_why.py",
        "state.parked = math.max(state.parked, NOW + math.max(0, asked))",
    ),
    *_of(
        SHARED + "slots/state.lua",
        BACKED_OFF,
        (
            "return state.fails > 0 and 1 or state.limit.concurrency end",
            "return state.limit.concurrency end",
        ),
    ),
    *_of(
        GATE,
        BACKED_OFF,
        ("return None if is_full and judge.in_doubt(slot) else number", "return number"),
    ),
    *_of(GATE, LIMITS, ("self.turns.suspend(slot, 0.0)", "pass")),
    *_of(GATE, "tests/crawls/test_robots.py", ("told = replace(told, failed=None)", "pass")),
    *_of(
        "worker/politeness/gate.py",
        "tests/crawls/test_sessions.py",
        ("if turns.wait(slot) > AHEAD and (is_full or turns.of(slot).waiting):", "if False:"),
    ),
    *_of(
        "worker/worker.py",
        "tests/crawls/test_sessions.py",
        ("return number if number + (self._kept_at > 0) <= stored[0] else None", "return number"),
    ),
    *_of(ROBOTS, "tests/crawls/test_robots.py", "keep('lock', LOCK)"),
    *_of(
        "worker/politeness/turns.py",
        "tests/unit/test_allowance.py",
        ("return start - now if start < self.ends else NOT_NOW", "return start - now"),
    ),
    *_of(
        "worker/politeness/turns.py",
        LIMITS,
        ("is_over and (free or not self._has_more(slot))", "is_over"),
    ),
    *_of("middlewares/retry.py", "tests/crawls/test_retry.py", "retry.meta[DELAY_KEY] = pause"),
    *_of(
        "worker/kept.py",
        KEPT,
        ("page.holder.waits_for += 1", "pass"),
        ("holder.give_back()", "pass"),
        ("if problem is not None and holder.problem is None:", "if False:"),
        ("if closing or (page.holder in anothers and page.asked_again):", "if closing:"),
        ("self._known.difference_update(fingerprints)", "pass"),
        ("self._known.clear()", "pass"),
        ("self.left_start |= page.asked_again and holder is None", "pass"),
    ),
    *_of(SHARED + "enqueue.lua", IDENTITY, ("item[ASKED] > 0 then", "item[ASKED] == 1 then")),
    *_of(
        SHARED + "generations.lua",
        "tests/protocol/test_seen.py",
        ("if known[i] == 0 then", "if true then"),
        ("if NOW >= due then", "if false then"),
        ("meta.generation, due + ttl", "meta.generation, NOW + ttl"),
    ),
    *_of(
        "worker/asked.py",
        "tests/crawls/test_recurrence.py",
        ("parent = of_period(parent, min(ttls))", "pass"),
        ("calls.STARTS if identity else 0", "0"),
    ),
    *_of("worker/asked.py", "tests/crawls/test_feeder.py", "one.fed or "),
    *_of(
        "worker/asked.py",
        "tests/crawls/test_identity.py",
        ("one.page.stored.wanted", "retry_times(one.page.request.meta)"),
        ("headers=headers, retries", "retries"),
    ),
    *_of("worker/page.py", "tests/crawls/test_retry.py", "meta.pop(WANTED_KEY, None)"),
    *_of(
        "worker/outbox.py",
        "tests/crawls/test_retry.py",
        ("if _is_slot_of(one.request, page.request):", "if False:"),
        ("wanted := stored.wanted + ", "wanted := 0 * "),
        "stored.dont_filter if page.retry is None else ",
    ),
    *_of(
        "frontier/lua/feed.lua",
        "tests/crawls/test_feeder.py",
        "redis.call('ZADD', BATCHES, NOW + input.ttl, batch)",
        ("#lines < input.most and bytes < MOST_BYTES", "#lines < input.most"),
    ),
    *_of(
        "worker/in_progress.py",
        BATCH,
        ("in self._left.values() if not page.waits_for]", "in self._left.values()]"),
    ),
    *_of(
        "worker/in_progress.py", ENDS, ("if isinstance(failure.value, CloseSpider):", "if False:")
    ),
    *_of("worker/in_progress.py", SESSIONS, " or self._fingerprint(request) != known_by"),
    *_of("worker/worker.py", SESSIONS, "lease.deliveries and "),
    *_of(
        "serialization/identity.py",
        "tests/crawls/test_identity.py",
        ("return marked, repeats[alike] - 1", "return marked, 0"),
    ),
    *_of(
        "pipelines/row_key.py",
        f"{BATCH} tests/sinks/test_database.py",
        (
            "return _digest(spider, identity.hex(), callback, str(number))",
            "return _digest(spider, identity.hex(), callback)",
        ),
    ),
    *_of("pipelines/batch.py", ENDS, " or (pages is not None and pages.lacks_files(page))"),
    *_of(
        "pipelines/database/upsert.py",
        WRITER,
        ("before[key(values)] += 1", "pass"),
        (
            "guard = stored.is_(None) | (stored <= insert.excluded[target.version])",
            "guard = stored <= insert.excluded[target.version]",
        ),
        ("if target.also_unique:", "if False:"),
    ),
    *_of(
        "pipelines/writer.py",
        WAITING + " tests/sinks/test_batch.py",
        ("elif len(piece) > 1:", "elif False:"),
        ("except BaseException as error:", "except OSError as error:"),
        (
            "while self._waiting or self.doubts or not self._closing:",
            "while self._waiting or not self._closing:",
        ),
        ("proof = self.doubts.answers and counts", "proof = False"),
        ("return self._worker.finds_nothing()", "return True"),
    ),
    *_of(
        "pipelines/writer.py",
        DOUBT,
        (
            "losses = losses + 1 if isinstance(error, (ConnectionLost, RowLocked)) else 0",
            "losses = 0",
        ),
        ("if error.at_commit:", "if False:"),
    ),
    *_of(
        "pipelines/database/pipeline.py", DOUBT, ("write_nothing(connection, row.record)", "pass")
    ),
    *_of(
        SENTINEL,
        SENTINELS,
        ("if 2 * len(views) <= voters:", "if False:"),
        ("if 2 * naming <= voters:", "if False:"),
        ("if there < wanted:", "if False:"),
    ),
    *_of(
        "server/cluster/hash_slots.py",
        "tests/unit/test_hash_slots.py",
        ("sure = 2 * votes > len(masters)", "sure = votes > 0"),
        ('if "cluster_state:ok" not in _text(told):', "if not told:"),
        ("self._heard[step.node] = -self._clock()", "self._heard[step.node] = 0.0"),
        ("may_wait = self._problem is not None or", "may_wait ="),
    ),
    *_of(
        "ops/migration/plain.py",
        MIGRATE,
        (
            'return type("Nothing", (_Nothing,), {})  # a pickle may change a class, too',
            "return super().find_class(module, name)",
        ),
    ),
    *_of(
        "ops/migration/migration.py",
        MIGRATE,
        ("taken = [one for one in members if one not in self._left]", "taken = members"),
        ("if at not in refused", ""),
        ("elif moved and status", "elif False and status"),
    ),
    *_of("ops/migration/old_frontier.py", MIGRATE, " - self._deleted", "reversed"),
    *_of(
        "ops/migration/requests.py",
        MIGRATE,
        ("-int(score)", "int(score)"),
        ("entry, digest_size", "b'', digest_size"),
    ),
]
