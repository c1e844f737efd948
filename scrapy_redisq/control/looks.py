"""What is to be seen of a frontier as a whole: where it stands, why, and what it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scrapy_redisq.control import memory
from scrapy_redisq.control.frontier_status import absent, config_of, summary
from scrapy_redisq.control.past import PastMethods
from scrapy_redisq.control.scaling import Bounds, Wanted, wanted_workers
from scrapy_redisq.control.why import corrupt, explain, unreachable
from scrapy_redisq.errors import FrontierCorrupt, FrontierError
from scrapy_redisq.frontier import admin
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.growth import NO_LIMIT, GrowthLimit
from scrapy_redisq.frontier.seen import SeenStatus, seen_filter
from scrapy_redisq.frontier.trouble import TROUBLE
from scrapy_redisq.server.cluster import nodes_of
from scrapy_redisq.server.condition import Condition, condition_of
from scrapy_redisq.server.connection import Server

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LookMethods(PastMethods):
    """The part of `Frontier` that looks at all of it."""

    _server: Server

    def status(self) -> dict[str, Any]:
        """Where the crawl stands, as plain values (the fields of ``status --json``).

        ``state`` is "absent", "running" (workers are alive), "stopped" (unfinished, nobody
        works on it) or "complete". ``since`` is a UTC time, ``seen_ago`` in seconds.
        """
        first = self._status(0)
        meta = self._meta(first)
        if not meta:
            return absent(self.name)
        config = config_of(meta)
        shards = [first] + [self._status(shard) for shard in config.shard_numbers(self.name)[1:]]
        with self._making_sense():
            return summary(self.name, meta, config, shards, self._seen_status(config, meta))

    def _seen_status(self, config: FrontierConfig, meta: Mapping[str, str]) -> SeenStatus:
        seen, generation = seen_filter(config), meta.get("generation", "")
        parts: list[SeenStatus] = [
            self._run(admin.seen_status(self.name, shard, generation, seen))
            for shard in config.shard_numbers(self.name)
        ]
        return SeenStatus.total(parts)

    def why(self, status: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Why nothing, or little, happens: ``reason`` (a code), ``text`` (a sentence with figures),
        ``also`` (more of them), and figures; see `scrapy_redisq.control.why.explain`.

        ``status`` as `status` has just given it, if that is known. About 20 slots are looked at at
        a time, and 100 in all, however many there are. That Redis is away is a reason, too, and
        not raised.
        """
        away: dict[int, str] = {}
        waits: list[admin.Waits] = []
        try:
            meta = self._meta(self._status(0))
        except TROUBLE as error:
            return unreachable(self._server.redact(error).rstrip("."))
        if not meta:
            return explain(absent(self.name))
        config = config_of(meta)
        for shard in config.shard_numbers(self.name):
            try:
                waits += self._waits(shard)
            except TROUBLE as error:
                away[shard] = self._server.redact(error).rstrip(".")
            except FrontierCorrupt as error:
                return corrupt(error)
        try:
            status = status or self.status()
        except TROUBLE as error:
            if not away:
                return unreachable(self._server.redact(error).rstrip("."))
            status = {**absent(self.name), "state": "running"}
        servers = [] if away else self._conditions()
        return explain(status, waits, servers, away, growth_limit_of(meta))

    def memory(self) -> dict[str, Any]:
        """What takes how much of Redis' memory: see README for the fields. Bytes by part of the
        frontier are estimates, of samples (``MEMORY USAGE``); all keys of up to 100,000 a server
        are looked at, else ``complete`` is False. What the user may not ask is None, and
        ``problem`` says so. Raises `FrontierError` if there is no frontier.
        """
        status = self.status()
        if status["state"] == "absent":
            raise FrontierError(f"there is no frontier {self.name!r}")
        config = self.config()
        shards = config.shard_numbers(self.name) if config else ()
        found = memory.measure(nodes_of(self.client), self.name, shards)
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
            return [condition_of(node) for node in nodes_of(self.client)]
        except TROUBLE:
            return []

    def wanted_workers(
        self, *, status: Mapping[str, Any] | None = None, **bounds: Unpack[Bounds]
    ) -> Wanted:
        """How many workers would have work now, from ``least`` to ``most``, and why; ``bounds`` are
        those of `scrapy_redisq.control.scaling.wanted_workers`. At most 100 slots of a shard are
        looked at.
        """
        status = status or self.status()
        waits: list[admin.Waits] = []
        if status["state"] not in {"absent", "complete"} and (config := self.config()) is not None:
            for shard in config.shard_numbers(self.name):
                waits += self._waits(shard)
        return wanted_workers(status, waits, **bounds)

    def _growth_limit_of_workers(self) -> GrowthLimit:
        return growth_limit_of(self._meta(self._status(0)))


def growth_limit_of(meta: Mapping[str, str]) -> GrowthLimit:
    """How large the workers of a run let it become."""
    try:
        return GrowthLimit(int(meta.get("max_pending", 0)), float(meta.get("max_memory", 0)))
    except ValueError:  # of another hand
        return NO_LIMIT
