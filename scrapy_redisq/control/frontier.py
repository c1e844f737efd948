"""The frontier for everybody but workers: producers, people, the command line. Synchronous."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from scrapy.http import Request

from scrapy_redisq.control.looks import LookMethods
from scrapy_redisq.control.seeds import Seed, SeedReader
from scrapy_redisq.control.slot_status import SlotMethods
from scrapy_redisq.control.urls import WAITS, UrlMethods
from scrapy_redisq.control.worker_orders import WorkerMethods
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
from scrapy_redisq.frontier.growth import NO_LIMIT, Fill, GrowthLimit
from scrapy_redisq.frontier.names import key_prefix, number
from scrapy_redisq.frontier.runs import drive
from scrapy_redisq.frontier.seen import SeenFilter, probe, seen_filter
from scrapy_redisq.frontier.slot_names import numbers_of_any
from scrapy_redisq.frontier.trouble import TROUBLE
from scrapy_redisq.serialization.meta import milliseconds
from scrapy_redisq.server.connection import Client, Server
from scrapy_redisq.settings.server import open_server_of
from scrapy_redisq.settings.settings import RedisqSettings, check_frontier_name

logger = logging.getLogger(__name__)

RETRY_PAUSE = 0.2
"""Seconds between attempts to join, while workers may come back."""

PUSH_BATCH = 300
PUSH_BYTES = 4_000_000
"""Requests that one push script adds, and bytes of them but for the first."""

PUSH_WAIT = 0.5
"""Seconds between two looks for room in a full frontier."""


NumberedSeed = tuple[int, Seed]
"""Its number among what is pushed, counted from 1."""


@dataclass
class Pushed:
    """What became of pushed requests. ``errors``: (number counted from 1, what is wrong)."""

    accepted: int = 0
    duplicates: int = 0
    errors: list[tuple[int, str]] = field(default_factory=list)


class Frontier(LookMethods, SlotMethods, UrlMethods, WorkerMethods):
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
        seeds: SeedReader | None = None,
        keep_config: bool = False,
        keep_seen: bool = False,
        dead_max: int = RedisqSettings.dead_max.default,
        growth: GrowthLimit = NO_LIMIT,
        owns_server: bool = False,
        client: Client | None = None,
    ) -> None:
        """``client``: of the server, shared by those who look at many frontiers, and closed by
        them; None: one of its own."""
        super().__init__(check_frontier_name(name), server.client() if client is None else client)
        self._server = server
        self._owns_client = client is None
        self._owns_server = owns_server
        self._config = config or FrontierConfig()
        self._keep_config = keep_config or config is None
        self._seeds = seeds or SeedReader()
        self._keep_seen = keep_seen
        self.dead_max = dead_max
        self.growth = growth
        """How large pushes may make it; without a limit of its own that of its workers holds."""
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

        ``config``, else what ``settings`` say, is only used when a push begins a run; with neither
        that is configured as the one before it, and keeps what was seen if that had workers with
        REDISQ_KEEP_SEEN. An unfinished run stays as it is. ``fingerprint`` is for crawls with a
        REQUEST_FINGERPRINTER_CLASS of their own: their fingerprinter's method. ``project_dir`` is
        where ``embedded://`` without a path has its ``.scrapy/redisq``. ``settings`` also say which
        classes may be pushed beside Scrapy's own (REDISQ_REQUEST_CLASSES, REDISQ_VALUE_CLASSES),
        and which keys of meta that are not safe (REDISQ_META_KEYS).
        """
        keep_config = config is None and settings is None
        settings = settings or RedisqSettings.read({})
        config = config or settings.frontier_config()
        server = open_server_of(settings, project_dir, url=url)
        try:
            server.wait()
            settings.check_shards(server.masters)
            return cls(
                server,
                name,
                config,
                seeds=SeedReader.of(settings, fingerprint),
                keep_config=keep_config,
                keep_seen=settings.keep_seen,
                dead_max=settings.dead_max,
                growth=settings.growth_limit(),
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

    def _begin(self) -> tuple[calls.Joined, SeenFilter]:
        """Join as a producer: begin a run if there is none to add to; take its configuration."""
        config = self._config.laid_out(self._server.masters)
        if self._keep_config and (stored := self.config()):
            # To begin a run would delete what the one before has left.
            self._seeds.check_fingerprinter(stored.fingerprinter)
        if config.dupefilter == "bloom":
            shards = config.shard_numbers(self.name) if config.spread else (0,)
            found = probe(self.client, [key_prefix(self.name, shard) for shard in shards])
            config = replace(config, backend="redisbloom" if found else "bitmap")
        else:
            config = replace(config, backend="exact")
        joined = self._join(config)
        self._seeds.check_fingerprinter(joined.config.fingerprinter)
        return joined, seen_filter(joined.config)

    def _join(self, config: FrontierConfig) -> calls.Joined:
        told = False
        while True:
            try:
                return drive(
                    self._run,
                    runs.join_as_producer(
                        self.name, config, keep_config=self._keep_config, keep_seen=self._keep_seen
                    ),
                )
            except calls.MayComeBack as waiting:
                if not told:
                    logger.info("%s", waiting)
                told = True
            time.sleep(RETRY_PAUSE)

    # Pushing

    def push(self, requests_or_urls: Iterable[Any], *, result: Pushed | None = None) -> Pushed:
        """Add requests: URLs, mappings of fields (url, method, headers, body, cookies, meta,
        cb_kwargs, callback, priority, dont_filter), or ``scrapy.Request`` objects.

        On a complete run this begins a new one, unless that has a name (REDISQ_RUN): then it goes
        on. What is wrong with single requests is reported in the result's ``errors`` and does not
        stop the others. Waits while the frontier is full (``growth``), so not to be called where
        that would keep a worker from making room. Raises TypeError for one
        that is not in a list.

        On a cluster all servers have to answer when it begins, else `ShardAway` is raised. Requests
        for one that does not later are among the ``errors``, all if it is shard 0; they may be
        pushed again. Whatever is raised, what was pushed before that stays: ``result``, an empty
        one, is filled meanwhile, and tells how far this came.
        """
        if isinstance(requests_or_urls, (str, bytes, Mapping, Request)):
            raise TypeError(f"takes a list of requests, not {requests_or_urls!r:.100}")
        result = Pushed() if result is None else result
        try:
            self._push(requests_or_urls, result)
        except ServerFull:
            raise
        except TROUBLE as error:
            if away := self._shards_away():
                raise ShardAway(f"{away}: {result.accepted} of the requests were pushed") from error
            raise
        finally:
            self._note("push", "requests", result.accepted)
        return result

    def fetch_again(self, url: str, *, slot: str | None = None) -> dict[str, Any]:
        """Have ``url`` fetched, seen or not; -> what `url` said, and ``how``.

        "waits": it will be fetched anyway, nothing was done; "requeued": it was a dead letter, and
        is tried again as it was; "pushed": as a new request past the dupefilter, for the spider's
        ``parse()``, for which it waits for room, and begins a run, as `push` does. Raises as
        `url` does.
        """
        told = self.url(url, slot=slot)
        if told["state"] in WAITS:
            return {**told, "how": "waits"}
        if told["letter"] and self.requeue([told["letter"]]):
            return {**told, "how": "requeued"}
        fields: dict[str, Any] = {"url": url, "dont_filter": True}
        if slot is not None:
            fields["meta"] = {"download_slot": slot}
        pushed = self.push([fields])
        if pushed.errors:
            raise ValueError(pushed.errors[0][1])
        return {**told, "how": "pushed"}

    def _push(self, requests_or_urls: Iterable[Any], result: Pushed) -> None:
        joined: calls.Joined | None = None
        away: dict[int, str] = {}
        numbered = enumerate(requests_or_urls, start=1)
        growth = self.growth or self._growth_limit_of_workers()
        while chunk := list(itertools.islice(numbered, self._room(growth))):
            seeds = []
            for at, item in chunk:
                try:
                    seeds.append((at, self._seeds.read(item)))
                except Unserializable as error:
                    cure = f"; {error.cure}" if error.cure else ""
                    result.errors.append((at, f"{error}{cure}"))
                except (RedisqError, ValueError, TypeError) as error:
                    result.errors.append((at, str(error)))
                except Exception as error:  # of a fingerprinter of the project, or nested too deep
                    result.errors.append((at, reason(error)))
            if not seeds:
                continue
            if joined is None:
                joined, seen = self._begin()
            while seeds:
                shard, part, others = self._parted(seeds, joined)
                # Without shard 0 nobody knows whether the run goes on.
                missing = next((one for one in (shard, 0) if one in away), None)
                if missing is None:
                    asked = shard
                    try:
                        outcome = self._push_part(shard, [seed for _, seed in part], joined, seen)
                        asked = 0
                        stranded = outcome not in {"", "sealed"} and self._is_stranded(
                            shard, joined
                        )
                    except ServerFull:
                        raise
                    except TROUBLE as error:
                        if not joined.config.spread or joined.config.shards == 1:
                            raise
                        away[asked] = self._server.redact(error)
                        missing = asked
                if missing is not None:
                    why = f"shard {missing} is away ({away[missing]}): push it again"
                    result.errors += [(at, why) for at, _ in part]
                    seeds = others
                    continue
                if outcome == "sealed":
                    try:
                        drive(self._run, runs.open_shard(self.name, shard, joined.run))
                    except FrontierLost:
                        joined, seen = self._begin()
                elif not outcome or stranded:
                    # The run ended meanwhile; another one may have other shards.
                    joined, seen = self._begin()
                else:
                    result.accepted += outcome.count("1")
                    result.duplicates += outcome.count("0")
                    seeds = others

    def _shards_away(self) -> str:
        """Which shards of a cluster do not answer now, and why one of them does not."""
        if not self._server.masters:  # no cluster: one server has them all
            return ""
        try:
            config = self.config() or self._config.laid_out(self._server.masters)
        except TROUBLE:  # of shard 0, or of all
            config = self._config.laid_out(self._server.masters)
        away = {}
        numbers = config.shard_numbers(self.name)
        for shard in numbers if len(numbers) > 1 else ():
            try:
                self._run(calls.fill(self.name, shard))
            except TROUBLE as error:
                away[shard] = self._server.redact(error)
        if not away:
            return ""
        which = ", ".join(map(str, away))
        return (
            f"of frontier {self.name!r} no server has shard {which} ({next(iter(away.values()))})"
        )

    def _room(self, growth: GrowthLimit) -> int:
        """How many requests may be pushed now, at most `PUSH_BATCH`. Waits until there is room."""
        told = False
        while growth:
            config = self.config()
            shards = config.shard_numbers(self.name) if config else (0,)
            fills: list[Fill] = [self._run(calls.fill(self.name, shard)) for shard in shards]
            unfinished = sum(fill.unfinished for fill in fills)
            if not (reached := growth.reached(unfinished, fills)):
                room = growth.pending - unfinished if growth.pending else PUSH_BATCH
                return min(room, PUSH_BATCH)
            if not told:
                nobody = "" if self.status()["state"] == "running" else ", and no worker is there"
                self.waiting_to_push(f"waits for room: {reached}{nobody}")
            told = True
            time.sleep(PUSH_WAIT)
        return PUSH_BATCH

    def _parted(
        self, seeds: list[NumberedSeed], joined: calls.Joined
    ) -> tuple[int, list[NumberedSeed], list[NumberedSeed]]:
        """The shard of the first seed, as many seeds of it as one script takes, and the others."""
        shards = [joined.config.shard_of(self.name, self._slot(seed, joined)) for _, seed in seeds]
        part: list[NumberedSeed] = []
        others: list[NumberedSeed] = []
        size = 0
        for numbered, shard in zip(seeds, shards, strict=True):
            if shard == shards[0]:
                size += len(numbered[1].entry)
            # Once there are too many, all that follow have to wait: they keep their order.
            fits = shard == shards[0] and (not part or size <= PUSH_BYTES)
            (part if fits else others).append(numbered)
        return shards[0], part, others

    def _push_part(
        self, shard: int, seeds: list[Seed], joined: calls.Joined, seen: SeenFilter
    ) -> str:
        """Push to one shard; -> the outcome, see `calls.push`."""
        queues: dict[tuple[str, int], int] = {}
        items = []
        for seed in seeds:
            queue = (self._slot(seed, joined), seed.priority)
            number = queues.setdefault(queue, len(queues) + 1)
            fingerprint = seen.encode(seed.fingerprint) if seed.fingerprint else None
            items.append(
                calls.enqueue_item(
                    number,
                    seed.entry,
                    fingerprint,
                    milliseconds(seed.delay),
                    asked=calls.RECENT if seed.identity else 0,
                    identity=seed.identity,
                )
            )
        outcome: str = self._run(
            calls.push(
                self.name,
                shard,
                joined.run,
                joined.config.backend,
                [(slot, str(priority)) for slot, priority in queues],
                items,
                seen.parameters(),
            )
        )
        return outcome

    def _is_stranded(self, shard: int, joined: calls.Joined) -> bool:
        """Whether what was just pushed to ``shard`` is left in a run that is over. One with a log
        of its own may have lost its seal: so shard 0 is told that the run is not complete."""
        if shard == 0 or not joined.config.spread:
            return False
        return not self._run(calls.open_run(self.name, 0, joined.run))

    @staticmethod
    def _slot(seed: Seed, joined: calls.Joined) -> str:
        return PRIORITY_SLOT if joined.config.scheduling == "priority" else seed.slot

    # Resetting

    def reset(self, *, force: bool = False) -> None:
        """Delete the whole frontier. Raises `FrontierInUse` while workers live, unless forced.

        What a cluster has left of a run that shard 0 has lost (`ShardLost`) is deleted as it is:
        no worker can go on with that.
        """
        try:
            meta = self._meta(self._status(0))
        except FrontierCorrupt:
            numbers = self._any_shards()
        else:
            shards = max(number(meta.get("shards", 1)), number(meta.get("config:shards", 1)))
            if not 1 <= shards <= MOST_SHARDS:  # of another hand
                shards = MOST_SHARDS
            numbers = numbers_of_any(self.name, shards, meta.get("config:spread") == "True")
            if not meta:
                numbers += self.shards_left()
        drive(self._run, runs.reset(self.name, numbers, force=force))

    def mend(self) -> list[str]:
        """Say that keys which were damaged are in order again, so that workers may join; -> those.

        A key that is still of another type stops the workers anew. What it held is lost: when the
        crawl is over, its workers close with ``frontier_corrupt``, and say how many requests are
        missing.
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
