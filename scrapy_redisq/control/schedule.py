"""Requests that come again (``meta["redisq_every"]``): which there are, and their end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from scrapy_redisq.control.stored import StoredFrontier
from scrapy_redisq.control.words import utc
from scrapy_redisq.errors import Undecodable
from scrapy_redisq.frontier import admin
from scrapy_redisq.frontier.operations import parse_lease
from scrapy_redisq.serialization.recurrence import EVERY_KEY, Recurrence
from scrapy_redisq.serialization.request_fields import loads_fields


class _Waiting(NamedTuple):
    url: str
    slot: str
    every: float
    due_in: float
    shard: int
    record: bytes


class ScheduleMethods(StoredFrontier):
    """The part of `Frontier` that is about requests that come again."""

    def schedule(self) -> list[dict[str, Any]]:
        """Those that wait for their time, the next one first: ``url``, ``slot``, ``every`` (the
        seconds between two times, as they are now), ``due`` and ``due_in`` (s)."""
        now, told = time.time(), []
        for one in sorted(self._recurring(), key=lambda one: one.due_in):
            due = {"due": utc(now + one.due_in), "due_in": one.due_in}
            told.append({"url": one.url, "slot": one.slot, "every": one.every, **due})
        return told

    def unschedule(self, url: str) -> int:
        """Let ``url`` come no more; -> how many requests of it waited for their time. One that is
        queued, or with a worker, is fetched once more and has to be removed after that."""
        removed = 0
        for one in [one for one in self._recurring() if one.url == url]:
            cursor = "0"
            while cursor:
                call = admin.drop(self.name, one.shard, one.slot, cursor, one.record)
                n, cursor = self._run(call)
                removed += n
        self.note("unschedule", url, removed)
        return removed

    def _recurring(self) -> Iterator[_Waiting]:
        for shard in self._shards():
            cursor, going = "", True
            while going:
                call = admin.find(self.name, shard, "delayed", "", EVERY_KEY, cursor)
                cursor, _, found = self._run(call)
                going = bool(cursor)
                for _, left, record in found:
                    try:
                        lease = parse_lease("", record)
                        fields = loads_fields(lease.entry)
                        every = Recurrence.of(fields["meta"][EVERY_KEY]).every
                    except (Undecodable, LookupError, TypeError, ValueError):
                        continue  # the text stands elsewhere in it, or somebody else has written it
                    yield _Waiting(fields["url"], lease.slot, every, int(left) / 1e6, shard, record)
