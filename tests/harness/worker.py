"""One worker of a frontier, driven step by step: what a run session does, without a clock.

Replies can be lost on the way, so that a test decides what each side knows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha1
from typing import Any, TypeVar

import redis
from msgspec.structs import replace

from scrapy_redisq.errors import FrontierLost
from scrapy_redisq.frontier import admin, calls, operations, runs
from scrapy_redisq.frontier.config import PRIORITY_SLOT, FrontierConfig
from scrapy_redisq.frontier.exchange import unpack_links
from scrapy_redisq.frontier.limits import GIVE_UP
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import Enqueue, Finish, Lease, Link, Reply, TurnReport
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.runs import Steps
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.seen import seen_filter
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS, ShardSession
from scrapy_redisq.frontier.shards import shard_of
from scrapy_redisq.frontier.terms import Demand, Terms

T = TypeVar("T")

_numbers = itertools.count(1)

NEVER_SUSPECT = 256
"""More deliveries than an entry can count."""

HOLD = 45.0
"""Seconds for which a post that was taken is left to the worker that has it."""

NAME = "books"
"""The frontier of most tests, and its configuration."""
EXACT = FrontierConfig(dupefilter="exact", backend="exact", spider="books")


def demand_for(want: int, slot_limit: int = MAX_CLAIMS) -> Demand:
    """Of a worker that wants so many entries, and may hold any number."""
    return Demand(True, want, slot_limit, {}, most=1_000_000)


def fingerprint_of(url: str) -> bytes:
    """20 bytes, as Scrapy's."""
    return sha1(url.encode()).digest()


@dataclasses.dataclass
class Clock:
    """In the place of the module ``time``: seconds of a clock that a test moves on."""

    ahead: float = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class OneServer:
    """The server of a session: never another one, but for what it was ``told`` to do instead."""

    def __init__(self, **told: Callable[..., Any]) -> None:
        self.__dict__.update(told)

    def revive(self) -> None: ...

    def redact(self, text: object) -> str:
        return str(text)

    async def confirm_primary(self) -> None: ...

    def primary_vouched(self) -> float:
        return time.monotonic()

    def renew_log(self) -> None: ...


class Worker:
    """A member of every shard of one frontier. ``ttl`` and ``age`` in seconds.

    ``holding`` are the leases
    that this worker knows of and has not ended, ``links`` what their pages have asked other shards
    for, where these have logs of their own.
    """

    def __repr__(self) -> str:
        return self.id

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        config: FrontierConfig,
        *,
        ttl: float = 3_600.0,
        dead_max: int = 1_000,
        terms: calls.RunTerms = calls.ANY_RUN,
        age: float = 0.0,
        limits: Mapping[str, str] | None = None,
        give_up: int = GIVE_UP,
        suspect_from: int = NEVER_SUSPECT,
        max_deliveries: int = NEVER_SUSPECT,
        throttle: str = "",
        seen_ttl: float = 0.0,
    ) -> None:
        self.client = client
        self.name = name
        self.config = config
        self.ttl = ttl
        self.terms = terms
        self.shared = Terms(
            name,
            config,
            ttl,
            max_deliveries,
            dead_max,
            0,
            run=terms,
            started=time.monotonic() - age,
            young=0.0,
            give_up=give_up,
            suspect_from=suspect_from,
        )
        self.since, _ = self.do(runs.first_look(self.shared))
        self.limits = limits
        self.throttle = throttle
        self.seen_ttl = seen_ttl
        self.holding: dict[str, tuple[ShardSession, Lease]] = {}
        self.links: dict[str, list[Enqueue]] = {}
        self.rejoins = 0
        self.complete = False
        self.joined = self._register()
        self.seen = seen_filter(self.joined.config)
        nothing: Any = None
        server = OneServer(primary_vouched=lambda: math.inf)
        self.run_session = RunSession(nothing, self.shared, server)
        self.run_session.joined = self.joined
        self.sessions = self.run_session.sessions = [
            ShardSession(self.run_session, shard, self.joined, self.id)
            for shard in self.joined.config.shard_numbers(name)
        ]

    def _register(self, former: Sequence[ShardSession] = ()) -> calls.Joined:
        """Join under a new id; with ``former`` only into the run, and the shards, of these."""
        self.id = f"worker-{next(_numbers):06}"  # later ones sort after earlier ones
        info = {"host": "here", "pid": 1, "spider": "books"}
        registration = calls.Registration(
            self.id, self.ttl, info, self.limits, self.throttle, self.seen_ttl
        )
        if former:
            joined = self.joined
            for session in former:
                terms = None if session.shard else self.terms
                intent = calls.come_back(joined.run, session.worker_id, self.since, terms)
                call = calls.join(self.name, session.shard, intent, self.config, registration)
                execute(self.client, call)
        else:
            run = f"run-{next(_numbers)}"
            joined = self.do(runs.join(self.shared, registration, self.since, run=run))
        return joined

    def do(self, steps: Steps[T]) -> T:
        """Run a procedure of `scrapy_redisq.frontier.runs`."""
        return runs.drive(lambda call: execute(self.client, call), steps)

    # What happens in the worker

    def change_terms(self, **changes: Any) -> None:
        self.run_session.terms = replace(self.run_session.terms, **changes)

    def enqueue(self, url: str, *, page: Lease | None = None, **options: Any) -> Enqueue:
        """Take a request, to be sent by the next exchange. Options as of `request`."""
        item = self.request(url, page=page, **options)
        self.sessions[shard_of(item.slot, len(self.sessions))].add(item)
        if page is not None and item.link is not None:
            self.links.setdefault(page.id, []).append(item)
        return item

    def request(
        self,
        url: str,
        *,
        slot: str = "host",
        priority: int = 0,
        filtered: bool = True,
        delay: int = 0,
        page: Lease | None = None,
        entry: bytes | None = None,
        identity: bytes | None = None,
        asked: int = 0,
        also: bool = False,
    ) -> Enqueue:
        """A request as the worker sends it. ``delay`` in ms. ``also``: its fingerprint is recorded,
        but not asked about."""
        if self.joined.config.scheduling == "priority":
            slot = PRIORITY_SLOT
        return Enqueue(
            slot,
            priority,
            entry or url.encode(),
            self.seen.encode(fingerprint_of(url)) if filtered else None,
            delay,
            also=self.seen.encode(fingerprint_of(url)) if also else None,
            identity=identity,
            asked=asked,
            page=page.id if page else None,
            tag=url,
            link=self._link(slot, page),
        )

    def _link(self, slot: str, page: Lease | None) -> Link | None:
        if page is None or not self.joined.config.spread:
            return None
        shards = len(self.sessions)
        return Link() if shard_of(slot, shards) != shard_of(page.slot, shards) else None

    def finish(
        self,
        lease: Lease,
        outcome: str = "done",
        *,
        reason: str = "",
        delay: int = 0,
        entry: bytes = b"",
        foreign: bool = False,
        priority: int = 0,
    ) -> None:
        """End a lease, after the requests of its page: see ``ShardSession.finish``."""
        session, _ = self.holding.pop(lease.id)
        finish = Finish(
            lease.id,
            outcome,
            reason,
            f"because of {reason}",
            delay,
            entry=entry,
            foreign=foreign,
            priority=priority,
        )
        session.finish(finish, self.links.pop(lease.id, ()))

    def waiting(self) -> int:
        """Enqueues and finishes that are not acknowledged."""
        return sum(map(len, self.sessions))

    # What happens on the way

    def exchange(
        self,
        want: int = 0,
        *,
        shard: int = 0,
        lose: str = "",
        starting: bool = False,
        confirmed: bool = False,
        slot_limit: int = MAX_CLAIMS,
        **options: Any,
    ) -> Reply | None:
        """One exchange. ``lose`` the "reply": then None; ``options`` as of ``ShardSession.call``.

        ``confirmed``: replicas have it. A worker that is told that its leases are void joins anew.
        Raises `FrontierLost` if the run is gone.
        """
        session = self.sessions[shard]
        may_add = starting or session.adds_elsewhere()
        demand = demand_for(want, slot_limit)
        call = session.call(want, demand, starting=may_add, **options)
        reply = execute(self.client, call)
        if lose:
            return None
        session.received(reply, confirmed=confirmed)
        if reply.status == "lost":
            raise FrontierLost(self.name)
        if reply.status in {"gone", "rewound"}:
            self.rejoin([session])
        if reply.status == "sealed":
            self.do(runs.open_shard(self.name, shard, self.joined.run))
            options.update(shard=shard, starting=starting, confirmed=confirmed)
            return self.exchange(want, slot_limit=slot_limit, **options)
        self._deliver(session, reply)
        for lease in reply.leases:
            self.holding[lease.id] = (session, lease)
        self.complete = reply.complete
        return reply

    def _deliver(self, session: ShardSession, reply: Reply) -> None:
        """See ``shard_task``."""
        if reply.post_due != 0:
            return
        call = calls.take_posts(self.name, session.shard, session.run_id, most=2, hold=HOLD)
        for id, post in execute(self.client, call).items():
            links = unpack_links(id, post)
            for link in links:
                self.sessions[shard_of(link.slot, len(self.sessions))].add(link)
            session.watch_post(id, links)

    def exchange_all(self, want: int = 0, **options: bool) -> bool:
        """Exchange with every shard. -> is the frontier complete, as far as this worker saw?"""
        complete = True
        for session in self.sessions:
            reply = self.exchange(want, shard=session.shard, **options)  # type: ignore[arg-type]
            complete = complete and reply is not None and reply.complete
        self.complete = complete and not self.waiting()
        return self.complete

    def claim(self, want: int, **options: object) -> list[Lease]:
        """The leases that one exchange brought."""
        reply = self.exchange(want, **options)  # type: ignore[arg-type]
        assert reply is not None
        return reply.leases

    def send(self, urls: Iterable[str] = (), **options: object) -> Reply:
        """Enqueue ``urls`` alike and exchange."""
        for url in urls:
            self.enqueue(url, **options)  # type: ignore[arg-type]
        reply = self.exchange()
        assert reply is not None
        return reply

    def rejoin(self, sessions: Sequence[ShardSession] = ()) -> None:
        """Go on as a new worker: see ``RunSession.come_back``."""
        sessions = sessions or self.sessions
        for session in sessions:
            self._give_back(session, returns=True)
        self._register(sessions)
        self.holding = {id: held for id, held in self.holding.items() if held[0] not in sessions}
        self.rejoins += 1
        for session in sessions:
            session.rejoined(self.joined.run, self.id)

    def leave(self) -> bool:
        """Give back what is held and leave. -> is the run complete now?"""
        for session in reversed(self.sessions):
            self._give_back(session)
        if not self.complete or self.terms.keep_alive:
            return False
        return self.conclude()

    def conclude(self) -> bool:
        """Complete the run if nothing is left of it. -> is it complete by that?"""
        return self.do(runs.conclude(self.name, self.joined.run)) is not None

    def _give_back(self, session: ShardSession, *, returns: bool = False) -> None:
        call = calls.leave(
            self.name, session.shard, session.run_id, session.worker_id, returns=returns
        )
        while execute(self.client, call):
            pass


Make = Callable[..., Worker]
"""Makes workers: the fixture ``member``."""


def ask(worker: Worker, want: int = 10, turns: Sequence[TurnReport] = ()) -> Reply:
    """The reply to an exchange that claims, and tells of ``turns``."""
    reply = worker.exchange(want, turns=turns)
    assert reply is not None
    return reply


def downloaded(
    worker: Worker, failed: bool | None = True, slot: str = "host", **options: Any
) -> None:
    """Hand in how a download ended that has begun just now, if ``options`` say nothing else."""
    usual = {"status": {True: 503, False: 200, None: 500}[failed], "begun": time.monotonic()}
    result = operations.DownloadResult(slot, failed=failed, **{**usual, **options})
    worker.sessions[0].outgoing.download_results.append(result)


def report(slot: str = "host", *, since: int = -1, tat: int = 0, **more: int) -> list[TurnReport]:
    """``since`` the last start, in us, of which there was none by default."""
    tokens, done, want = (more.get(name, 0) for name in ("tokens", "done", "want"))
    return [TurnReport(slot, since, tat, tokens, done, want)]


def member(client: redis.Redis, **config: Any) -> Worker:
    """A worker of `NAME`; keywords are those of its configuration."""
    return Worker(client, NAME, replace(EXACT, **config))


def key(name: str, shard: int = 0) -> str:
    """A key of `NAME`."""
    return key_prefix(NAME, shard) + name


def url_of(client: redis.Redis) -> str:
    return f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"


def now(client: redis.Redis) -> int:
    """µs."""
    seconds, microseconds = client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


def expire(client: redis.Redis, *workers: Worker) -> None:
    """As if their TTL had passed without a sign of life: no test waits for it."""
    for worker in workers:
        for session in worker.sessions:
            client.zadd(key("workers", session.shard), {session.worker_id: 1}, xx=True)


def reap(client: redis.Redis, worker: Worker, deliveries: int = 5) -> tuple[int, int, int]:
    """Reap shard 0."""
    return execute(client, calls.reap(NAME, 0, worker.joined.run, deliveries, 1_000))


def die(client: redis.Redis, worker: Worker) -> tuple[int, int, int]:
    expire(client, worker)
    return reap(client, worker)


def as_stored(
    client: redis.Redis, ids: Sequence[bytes] = (b"1",), shard: int = 0, name: str = NAME
) -> list[tuple[bytes, str, None]]:
    """Dead letters as `admin.requeue` takes them: id, SHA-1, and no other entry."""
    found = execute(client, admin.named_letters(name, shard, ids))
    return [(letter_id, sha1(letter or b"").hexdigest(), None) for letter_id, letter in found]
