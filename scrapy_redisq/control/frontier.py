"""The frontier for everybody but workers: producers, people, the command line. Synchronous."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import replace
from scrapy.http import Request

from scrapy_redisq.control.looks import LookMethods
from scrapy_redisq.control.schedule import ScheduleMethods
from scrapy_redisq.control.seeds import Seed, SeedReader, times
from scrapy_redisq.control.slot_status import SlotMethods
from scrapy_redisq.control.urls import WAITS, UrlMethods
from scrapy_redisq.errors import (
    FrontierCorrupt,
    FrontierLost,
    RedisqError,
    ServerFull,
    ShardAway,
    Unserializable,
    reason,
)
from scrapy_redisq.frontier import admin, calls, runs
from scrapy_redisq.frontier.config import MOST_SHARDS, PRIORITY_SLOT, FrontierConfig
from scrapy_redisq.frontier.growth import GrowthLimit, server_state
from scrapy_redisq.frontier.names import key_prefix, number
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.frontier.seen import probe, seen_filter
from scrapy_redisq.frontier.shards import numbers_of_any
from scrapy_redisq.serialization.meta import milliseconds
from scrapy_redisq.server.connection import Client, Server
from scrapy_redisq.settings.settings import RedisqSettings, check_frontier_name, open_server_of

logger = logging.getLogger(__name__)

RETRY_PAUSE = 0.2
"""Seconds between attempts to join, while workers may come back."""

PUSH_BATCH = 300
PUSH_BYTES = 4_000_000
"""Requests that one push script adds, and bytes of them but for the first."""

PUSH_WAIT = 0.5
"""Seconds between two looks for room in a full frontier."""


@dataclass
class Pushed:
    """The outcome of a push. ``errors``: (number counted from 1, what is wrong)."""

    accepted: int = 0
    duplicates: int = 0
    errors: list[tuple[int, str]] = field(default_factory=list)


class Frontier(LookMethods, ScheduleMethods, SlotMethods, UrlMethods):
    """All crawl state of one crawl, as seen from outside.

    >>> with Frontier.from_url("redis://localhost", "books") as frontier:
    ...     frontier.push(["https://books.example/", "https://books.example/"])
    ...     frontier.status()["queued"]
    Pushed(accepted=1, duplicates=1, errors=[])
    1

    Raises `ServerUnreachable`, and redis-py's errors if the server goes away later.
    """

    def __init__(
        self,
        server: Server,
        name: str,
        config: FrontierConfig | None = None,
        *,
        settings: RedisqSettings | None = None,
        fingerprint: Callable[[Request], bytes] | None = None,
        keep_config: bool = False,
        owns_server: bool = False,
        client: Client | None = None,
    ) -> None:
        """``config`` and ``settings`` are for what is pushed. ``client``: of the server, shared by
        those who look at many frontiers, and closed by them; None: one of its own."""
        super().__init__(check_frontier_name(name), server.client() if client is None else client)
        self._server = server
        self._owns_client = client is None
        self._owns_server = owns_server
        self._config = config or FrontierConfig()
        self._keep_config = keep_config or config is None
        self._settings = settings or RedisqSettings.read({})
        self._seeds = SeedReader(self._settings, fingerprint)
        self.waiting_to_push: Callable[[str], None] = lambda why: logger.info("%s", why)
        """Called with the reason when a push has to wait for room."""

    @classmethod
    def from_url(
        cls,
        url: str,
        name: str,
        *,
        config: FrontierConfig | None = None,
        settings: RedisqSettings | None = None,
        fingerprint: Callable[[Any], bytes] | None = None,
        project_dir: Path | None = None,
    ) -> Frontier:
        """Open the frontier ``name`` on the server at ``url``.

        A push that begins a run takes ``config``, else what ``settings`` say, else the
        configuration of the run before. ``settings`` also say what may be pushed. ``fingerprint``
        is the method of the crawl's REQUEST_FINGERPRINTER_CLASS, if it has one. ``project_dir`` is
        where ``embedded://`` without a path has its ``.scrapy/redisq``.
        """
        keep_config = config is None and settings is None
        settings = settings or RedisqSettings.read({})
        server = open_server_of(settings, project_dir, url=url)
        try:
            server.wait()
            settings.check_shards(server.masters)
            return cls(
                server,
                name,
                config or settings.frontier_config(),
                settings=settings,
                fingerprint=fingerprint,
                keep_config=keep_config,
                owns_server=True,
            )
        except BaseException:
            server.close()
            raise

    def close(self) -> None:
        """Close the connection, and leave the embedded server if this opened it."""
        if self._owns_client:
            self.client.close()
        if self._owns_server:
            self._server.close()

    def __enter__(self) -> Frontier:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Pushing

    def push(
        self,
        requests_or_urls: Iterable[Any],
        *,
        after: str | float = 0,
        every: str | float | Mapping[str, Any] | None = None,
        result: Pushed | None = None,
    ) -> Pushed:
        """Add requests: URLs, mappings of fields (url, method, headers, body, cookies, meta,
        cb_kwargs, callback, priority, dont_filter), or ``scrapy.Request`` objects.

        They wait for the time ``after`` ("2h", or seconds), and come again ``every`` so often, as
        ``meta["redisq_every"]`` says, unless their own meta says something else.

        On a complete run this begins a new one, unless that has a name (REDISQ_RUN). What is wrong
        with single requests is in the result's ``errors``. Waits while the frontier is full, so not
        to be called where that would keep a worker from making room. Raises TypeError for one that
        is not in a list, `ShardAway` unless all servers of a cluster answer. What was pushed before
        stays: ``result``, an empty one, is filled meanwhile.
        """
        if isinstance(requests_or_urls, (str, bytes, Mapping, Request)):
            raise TypeError(f"takes a list of requests, not {requests_or_urls!r:.100}")
        result = Pushed() if result is None else result
        meta = times(after, every)
        try:
            self._push(requests_or_urls, result, meta)
        except TROUBLE as error:
            if not self._server.masters:
                raise
            raise ShardAway(
                f"a server that frontier {self.name!r} needs does not answer "
                f"({self._server.redact(error)}): {result.accepted} of the requests were pushed"
            ) from error
        finally:
            self.note("push", "requests", result.accepted)
        return result

    def refused(self, requests_or_urls: Iterable[Any]) -> list[tuple[int, str]]:
        """The ``errors`` of a `push` of these, without pushing anything."""
        result = Pushed()
        self._read(list(enumerate(requests_or_urls, start=1)), result, {})
        return result.errors

    def record_seen(self, fingerprints: Sequence[bytes]) -> None:
        """Let requests with these fingerprints count as seen in the run; at most some hundred of
        them. A fingerprint does not say its slot, so each shard has all of them.

        Raises `FrontierLost` if the run ends meanwhile, and as `push`.
        """
        joined = self._begin()
        seen, told = seen_filter(joined.config), False
        also = [calls.fingerprint_item(seen.encode(one)) for one in fingerprints]
        shards = list(joined.config.shard_numbers(self.name))
        while shards:
            where = self.name, shards[0], joined.run, joined.config.backend
            call = calls.push(*where, [], [], seen.parameters(), 0, also=also)
            try:
                outcome = self._run(call)
            except ServerFull as full:
                told = self._wait(str(full), told=told)
                continue
            if outcome == "sealed":
                self._drive(runs.open_shard(self.name, shards[0], joined.run))
            elif outcome == "lost":
                raise FrontierLost(f"the run of frontier {self.name!r} ended meanwhile")
            else:
                del shards[0]

    def fetch_again(self, url: str, *, slot: str | None = None) -> dict[str, Any]:
        """Have ``url`` fetched, seen or not; -> what `url` said, and ``how``: "waits" (nothing was
        done), "requeued" (a dead letter, as it was), or "pushed" (as a new request of ``parse()``,
        past the dupefilter). Raises as `url` and `push` do."""
        told = self.url(url, slot=slot)
        if told["state"] in WAITS:
            return {**told, "how": "waits"}
        if told["letter"] and self.requeue([told["letter"]]):
            return {**told, "how": "requeued"}
        meta = None if slot is None else {"download_slot": slot}
        pushed = self.push([{"url": url, "dont_filter": True, "meta": meta}])
        if pushed.errors:
            raise ValueError(pushed.errors[0][1])
        return {**told, "how": "pushed"}

    def _push(
        self, requests_or_urls: Iterable[Any], result: Pushed, meta: Mapping[str, Any]
    ) -> None:
        joined: calls.Joined | None = None
        numbered = enumerate(requests_or_urls, start=1)
        # Without a limit of its own that of its workers holds.
        growth = self._settings.growth_limit() or self._growth_limit(self._meta(self._status(0)))
        while chunk := list(itertools.islice(numbered, self._room(growth))):
            seeds = self._read(chunk, result, meta)
            told = False
            while seeds:
                try:
                    joined = joined or self._begin()
                    shard, part, others = self._parted(seeds, joined)
                    outcome: str = self._run(self._push_call(shard, part, joined))
                except ServerFull as full:
                    told = self._wait(str(full), told=told)
                    continue
                if outcome == "sealed":
                    try:
                        self._drive(runs.open_shard(self.name, shard, joined.run))
                    except FrontierLost:
                        joined = None
                elif outcome == "lost" or self._is_stranded(shard, joined):
                    # The run ended meanwhile; another one may have other shards.
                    joined = None
                else:
                    result.accepted += outcome.count("1")
                    result.duplicates += outcome.count("0")
                    seeds = others

    def _read(
        self, chunk: list[tuple[int, Any]], result: Pushed, meta: Mapping[str, Any]
    ) -> list[Seed]:
        """Those that can be pushed; what is wrong with the others is among the result's errors."""
        seeds = []
        for at, item in chunk:
            try:
                seeds.append(self._seeds.read(item, meta))
            except Unserializable as error:
                result.errors.append((at, f"{error}; {error.cure}" if error.cure else str(error)))
            except (RedisqError, ValueError, TypeError) as error:
                result.errors.append((at, str(error)))
            except Exception as error:  # of a fingerprinter of the project, or nested too deep
                result.errors.append((at, reason(error)))
        return seeds

    def _begin(self) -> calls.Joined:
        """Join as a producer: begin a run if there is none to add to; take its configuration."""
        config = self._config.laid_out(self._server.masters)
        if self._keep_config and (stored := self.config()):
            # To begin a run would delete what the one before has left.
            self._seeds.check_fingerprinter(stored.fingerprinter)
        backend = "exact"
        if config.dupefilter == "bloom":
            shards = config.shard_numbers(self.name) if config.spread else (0,)
            found = probe(self.client, [key_prefix(self.name, shard) for shard in shards])
            backend = "redisbloom" if found else "bitmap"
        joined = self._join(replace(config, backend=backend))
        self._seeds.check_fingerprinter(joined.config.fingerprinter)
        return joined

    def _join(self, config: FrontierConfig) -> calls.Joined:
        keep_config, keep_seen = self._keep_config, self._settings.keep_seen
        told = False
        while True:
            try:
                return self._drive(
                    runs.join_as_producer(
                        self.name, config, keep_config=keep_config, keep_seen=keep_seen
                    )
                )
            except calls.MayComeBack as waiting:
                if not told:
                    logger.info("%s", waiting)
                told = True
            time.sleep(RETRY_PAUSE)

    def _room(self, growth: GrowthLimit) -> int:
        """How many requests may be pushed now, at most `PUSH_BATCH`. Waits until there is room."""
        told = False
        while growth:
            shards = self._shards() or (0,)
            fills = [self._run(server_state(key_prefix(self.name, shard))) for shard in shards]
            unfinished = sum(fill.unfinished for fill in fills)
            if not (reached := growth.reached(unfinished, fills)):
                room = growth.pending - unfinished if growth.pending else PUSH_BATCH
                return min(room, PUSH_BATCH)
            told = self._wait(reached, told=told)
        return PUSH_BATCH

    def _wait(self, why: str, *, told: bool) -> bool:
        """Wait a moment for room, and say so, unless that was ``told``; -> True."""
        if not told:
            nobody = "" if self.status()["state"] == "running" else ", and no worker is there"
            self.waiting_to_push(f"waits for room: {why}{nobody}")
        time.sleep(PUSH_WAIT)
        return True

    def _parted(
        self, seeds: list[Seed], joined: calls.Joined
    ) -> tuple[int, list[Seed], list[Seed]]:
        """The shard of the first seed, as many seeds of it as one script takes, and the others."""
        shards = [joined.config.shard_of(self.name, _slot(seed, joined)) for seed in seeds]
        part: list[Seed] = []
        others: list[Seed] = []
        size = 0
        for seed, shard in zip(seeds, shards, strict=True):
            if shard == shards[0]:
                size += len(seed.entry)
            # Once there are too many, all that follow have to wait: they keep their order.
            fits = shard == shards[0] and (not part or size <= PUSH_BYTES)
            (part if fits else others).append(seed)
        return shards[0], part, others

    def _push_call(self, shard: int, seeds: list[Seed], joined: calls.Joined) -> Any:
        """The call that pushes to one shard; see `calls.push`."""
        seen = seen_filter(joined.config)
        queues: dict[tuple[str, str], int] = {}
        items, also = [], []
        for seed in seeds:
            if seed.also:
                also.append(calls.fingerprint_item(seen.encode(seed.also)))
            queue = (_slot(seed, joined), str(seed.priority))
            items.append(
                calls.enqueue_item(
                    queues.setdefault(queue, len(queues) + 1),
                    seed.entry,
                    seen.encode(seed.fingerprint) if seed.fingerprint else None,
                    milliseconds(seed.delay),
                    asked=calls.STARTS if seed.fingerprint else calls.RECENT,
                    identity=seed.identity,
                )
            )
        backend, parameters = joined.config.backend, seen.parameters()
        most = self._settings.dead_max
        where = (self.name, shard, joined.run, backend)
        return calls.push(*where, list(queues), items, parameters, most, also=also)

    def _is_stranded(self, shard: int, joined: calls.Joined) -> bool:
        """Whether what was just pushed to ``shard`` is left in a run that is over. One with a log
        of its own may have lost its seal: so shard 0 is told that the run is not complete."""
        if shard == 0 or not joined.config.spread:
            return False
        return not self._run(calls.open_run(self.name, 0, joined.run))

    # Resetting

    def reset(self, *, force: bool = False) -> None:
        """Delete the whole frontier, and what a cluster has left of a run that shard 0 has lost
        (`ShardLost`). Raises `FrontierInUse` while workers live, unless forced."""
        try:
            meta = self._meta(self._status(0))
        except FrontierCorrupt:
            numbers = self._any_shards()
        else:
            shards = max(number(meta.get("shards", 1)), number(meta.get("config:shards", 1)))
            numbers = numbers_of_any(self.name, shards, meta.get("config:spread") == "True")
            if not meta:
                numbers += self.shards_left()
        self._drive(runs.reset(self.name, numbers, force=force))

    def mend(self) -> list[str]:
        """Say that keys which were damaged are in order again, so that workers may join; -> those.

        A key that is still of another type stops the workers anew. What it held is lost.
        """
        mended = [self._run(admin.mend(self.name, shard)) for shard in self._any_shards()]
        return [key for key in mended if key]

    def _any_shards(self) -> tuple[int, ...]:
        """The numbers of all shards that there may be."""
        if not self._server.masters:  # no cluster: one server has them all
            return (0,)
        return tuple(numbers_of_any(self.name, MOST_SHARDS, spread=True))

    def shards_left(self) -> tuple[int, ...]:
        """The numbers of the shards but 0 that a cluster has under this name: with a shard 0 that
        knows of no run they are what is left of one that it has lost."""
        if not self._server.masters:  # no cluster: one server has them all
            return ()
        # In how many shards it was laid out was known to shard 0.
        _, *numbers = numbers_of_any(self.name, MOST_SHARDS, spread=True)
        return tuple(shard for shard in numbers if self._status(shard))


def _slot(seed: Seed, joined: calls.Joined) -> str:
    return PRIORITY_SLOT if joined.config.scheduling == "priority" else seed.slot
