"""A frontier as a whole, as people see and steer it: where it stands, why, what it takes; its
workers; pausing all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from redis.exceptions import RedisError

from scrapy_redisq.control import memory
from scrapy_redisq.control.figures import figures
from scrapy_redisq.control.frontier_status import absent, config_of, summary, workers_of
from scrapy_redisq.control.past import PastMethods
from scrapy_redisq.control.scaling import Terms, Wanted, wanted_workers
from scrapy_redisq.control.why import corrupt, explain, unreachable
from scrapy_redisq.errors import FrontierCorrupt, RedisqError, ServerBusy
from scrapy_redisq.frontier import admin
from scrapy_redisq.frontier.feed_lines import count_lines
from scrapy_redisq.frontier.growth import GrowthLimit
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.frontier.seen import SeenStatus, seen_filter
from scrapy_redisq.server.cluster import nodes_of
from scrapy_redisq.server.condition import Condition, Told
from scrapy_redisq.server.connection import Server

RECENT = 61
"""Samples (of 10 s) that rates are made of: ten minutes."""

ORDERS = ("quiet", "work", "stop")
"""Orders that workers can be given."""


class LookMethods(PastMethods):
    """The part of `Frontier` that is about all of it."""

    _server: Server

    def status(self) -> dict[str, Any]:
        """Where the crawl stands, with the fields of docs/reference/status.md."""
        first = self._status(0)
        meta = self._meta(first)
        if not meta:
            return absent(self.name)
        config = config_of(meta)
        numbers = config.shard_numbers(self.name)
        shards = [first, *map(self._status, numbers[1:])]
        with self._making_sense():
            seen = seen_filter(config)
            parts: list[SeenStatus] = [
                self._run(admin.seen_status(self.name, shard, seen)) for shard in numbers
            ]
            status = summary(self.name, meta, config, shards, SeenStatus.total(parts))
            feeds = msgspec.json.decode(meta.get("feeds", "[]"), type=list[str])
        return {**status, "feeds": dict(zip(feeds, map(self._lines_in, feeds), strict=True))}

    def _lines_in(self, feed: str) -> int | None:
        try:
            return self._run(count_lines(feed, self.name))
        except (*TROUBLE, RedisError, RedisqError):  # denied, or its server is away
            return None

    def look(self) -> dict[str, Any]:
        """`status`, with `why` and `figures`: all that people are shown. Raises what `status` does,
        but says which shards are away if others are there."""
        try:
            status = self.status()
        except TROUBLE:
            why = self.why()
            if why["reason"] == "shard_away":
                raise ServerBusy(why["text"]) from None
            raise
        return {**status, "why": self.why(status), **figures(status, self._recent())}

    def _recent(self) -> list[dict[str, Any]]:
        return self.series(10, most=RECENT)["samples"]  # type: ignore[no-any-return]

    def workers(self) -> list[dict[str, Any]]:
        """The workers that are registered, at most 1,000: ``workers`` of `status`. What a worker
        tells of itself is at most 5 s and one exchange old; before its first report it is None."""
        shards = list(map(self._status, self._shards()))
        with self._making_sense():
            return workers_of(shards)

    def tell(self, what: str, workers: Iterable[str] | None = None) -> int:
        """Tell workers, by their ids, or all that are there, what to do; -> how many were told.

        "quiet": claim nothing, and finish what they hold; "work": claim again; "stop": leave, as at
        SIGTERM. They heed it within a second, or without the right to subscribe with their next
        exchange. Raises ValueError for anything else.
        """
        if what not in ORDERS:
            raise ValueError(f"{what!r} is none of {', '.join(ORDERS)}")
        if isinstance(workers, str):
            raise TypeError(f"takes a list of ids, not {workers!r:.100}")
        ids = None if workers is None else list(workers)
        told: int = self._run(admin.tell(self.name, what, ids))
        self.note(what, "all workers" if ids is None else ", ".join(ids), told)
        return told

    def pause_crawl(self) -> None:
        """Start nothing of the crawl before `resume_crawl`, as `pause` does of a slot. Workers
        stay. Raises `FrontierError` if there is no frontier."""
        self._pause_crawl("pause")

    def resume_crawl(self) -> None:
        """Let the crawl go on after `pause_crawl`. Slots that were paused stay so."""
        self._pause_crawl("resume")

    def _pause_crawl(self, what: str) -> None:
        if not self._run(admin.pause_run(self.name, paused=what == "pause")):
            raise self._absent()
        self.note(what, "the crawl")

    def why(self, status: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Why nothing, or little, happens; see `scrapy_redisq.control.why.explain`.

        ``status`` as `status` has just given it, if that is known. At most 100 slots of a shard are
        looked at. That Redis is away is a reason, too, and not raised.
        """
        away: dict[int, str] = {}
        waits: list[admin.Waits] = []
        try:
            meta = self._meta(self._status(0))
            if not meta:
                return explain(absent(self.name))
            growth = self._growth_limit(meta)
            for shard in config_of(meta).shard_numbers(self.name):
                try:
                    waits += self._waits(shard)
                except TROUBLE as error:
                    away[shard] = self._server.redact(error).rstrip(".")
                except FrontierCorrupt as error:
                    return corrupt(error)
            if away and status is None:
                status = {**absent(self.name), "state": "running"}
            status = status or self.status()
        except TROUBLE as error:
            return unreachable(self._server.redact(error).rstrip("."))
        servers = [] if away else self._conditions()
        return explain(status, waits, servers, away, growth)

    def memory(self) -> dict[str, Any]:
        """Redis' memory by parts, with the fields of docs/operate/watching.md. Raises
        `FrontierError` if there is no frontier."""
        status = self.status()
        if status["state"] == "absent":
            raise self._absent()
        found = memory.measure(nodes_of(self.client), self.name, self._shards())
        samples = self.series(120)["samples"]
        return memory.summary(found, status, self._conditions(), samples)

    def _waits(self, shard: int) -> list[admin.Waits]:
        waits = [self._run(admin.waits(self.name, shard))]
        while len(waits) < waits[0].parts:
            waits.append(self._run(admin.waits(self.name, shard, len(waits))))
        return waits

    def _conditions(self) -> list[Condition]:
        """Of the servers that have the frontier between them, as far as they answer."""
        try:
            return [Told(node).condition() for node in nodes_of(self.client)]
        except TROUBLE:
            return []

    def wanted_workers(self, *, status: Mapping[str, Any] | None = None, **terms: Any) -> Wanted:
        """How many workers would have work now, and why; ``terms`` (``least``, ``most``, …) are
        those of `scrapy_redisq.control.scaling.Terms`. At most 100 slots of a shard are looked at.
        """
        status = status or self.status()
        over = status["state"] in {"absent", "complete"}
        waits = [wait for shard in (() if over else self._shards()) for wait in self._waits(shard)]
        return wanted_workers(status, waits, Terms(**terms))

    def _growth_limit(self, meta: Mapping[str, str]) -> GrowthLimit:
        """How large the workers of the run let it become."""
        with self._making_sense():
            return GrowthLimit(int(meta.get("max_pending", 0)), float(meta.get("max_memory", 0)))
