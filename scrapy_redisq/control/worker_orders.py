"""Workers as people see them and steer them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scrapy_redisq.control.frontier_status import workers_of
from scrapy_redisq.control.stored import StoredFrontier
from scrapy_redisq.frontier import admin

ORDERS = ("quiet", "work", "stop")
"""What workers can be told."""


class WorkerMethods(StoredFrontier):
    """The part of `Frontier` that is about workers."""

    def workers(self) -> list[dict[str, Any]]:
        """The workers that are registered, as plain values: those of ``workers`` in `status`.

        ``told`` is what they were told last, ``quiet`` what they do. What a worker tells of
        itself is at most 5 s and one exchange old; before its first report it is None.
        ``cpu_seconds`` and ``rss_bytes`` are those of its process, which several crawls may share:
        those have one ``host`` and ``pid``. At most 1,000 are shown.
        """
        config = self.config()
        numbers = config.shard_numbers(self.name) if config else ()
        shards = [self._status(shard) for shard in numbers]
        with self._making_sense():
            return workers_of(shards)

    def tell(self, what: str, workers: Iterable[str] | None = None) -> int:
        """Tell workers, by their ids, or all that are there, what to do; -> how many were told.

        "quiet": claim nothing, and finish what they hold; "work": claim again; "stop": leave, as
        at SIGTERM. They heed it within a second, or where they cannot be woken (no right to
        publish or subscribe) with their next exchange. Who joins later is not told, and who was
        told to stop nothing else. Raises ValueError for anything else.
        """
        if what not in ORDERS:
            raise ValueError(f"{what!r} is none of {', '.join(ORDERS)}")
        if isinstance(workers, str):
            raise TypeError(f"takes a list of ids, not {workers!r:.100}")
        ids = None if workers is None else list(workers)
        told: int = self._run(admin.tell(self.name, what, ids))
        self._note(what, "all workers" if ids is None else ", ".join(ids), told)
        return told
