"""The frontier's past: samples of its counts, and events of the fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from scrapy_redisq.control.stored import StoredFrontier
from scrapy_redisq.frontier import admin
from scrapy_redisq.frontier.seen import exact_member

RESOLUTIONS = {10: 360, 120: 720, 1_800: 1_488}
"""Seconds between two samples, and how many are kept: of an hour, a day, a month."""

READ_BATCH = 500
"""Records of the history that one script reads."""


class _History(msgspec.Struct):
    """A record, as ``worker/page.py`` makes it."""

    url: str
    method: str
    status: int
    items: int
    attempts: int
    seconds: float
    worker: str
    run: str
    outcome: str


_history = msgspec.msgpack.Decoder(_History).decode


class PastMethods(StoredFrontier):
    """The part of `Frontier` that is about the past."""

    def series(self, resolution: int = 10, *, most: int | None = None) -> dict[str, Any]:
        """Samples of the counts, oldest first, at most the newest ``most``: one in ``resolution``
        seconds (10 for the last hour, 120 for the last day, 1,800 for the last month).

        ``{"resolution": 10, "samples": [{"at": …, "run": …, "created": …}]}``; ``at`` is in seconds
        since 1970, ``memory`` what all servers use, in bytes, or None. Without a worker there are
        no samples. Raises ValueError for another resolution.
        """
        if resolution not in RESOLUTIONS:
            raise ValueError(f"resolution is one of {', '.join(map(str, RESOLUTIONS))}")
        kept = RESOLUTIONS[resolution]
        most = kept if most is None else max(1, min(most, kept))
        config = self.config()
        shards = [
            self._run(admin.series(self.name, shard, seconds=resolution, most=most))
            for shard in (config.shard_numbers(self.name) if config else ())
        ]
        samples = _summed(shards, resolution, one_server=config is None or not config.spread)
        return {"resolution": resolution, "samples": samples[-most:]}

    def marks(self) -> list[dict[str, Any]]:
        """Events of the fleet, oldest first, at most 100: ``at`` (seconds since 1970),
        ``worker``, ``kind``, and ``what``: "began" and "completed" (the run's name or id),
        "release" and "configuration" (a worker joined that runs something else than the one before;
        its digest)."""
        marks = self._run(admin.marks(self.name))
        return [{**mark._asdict(), "at": mark.at / 1e6} for mark in marks]

    def actions(self) -> list[dict[str, Any]]:
        """The action log, oldest first, at most 1,000: ``at`` (seconds since 1970), ``by``,
        ``what``, ``on`` and ``number`` of what programs that say who they are (`by`) have done,
        and the command line. What is done again within a minute is added up."""
        actions = self._run(admin.actions(self.name))
        return [{**action._asdict(), "at": action.at / 1e6} for action in actions]

    def history(self, limit: int = 100) -> list[dict[str, Any]]:
        """Records of the requests that were finished last, newest first, where REDISQ_HISTORY
        is on: see docs/operate/watching.md for the fields."""
        newest: list[dict[str, Any]] = []
        for shard in self._shards():
            newest += dict(self._records(shard, limit)).values()
        return sorted(newest, key=lambda record: record["ended"], reverse=True)[: max(0, limit)]

    def _records(self, shard: int, limit: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """The newest records of a shard by their identities; perhaps one of them twice."""
        for skip in range(0, max(0, limit), READ_BATCH):
            most = min(READ_BATCH, limit - skip)
            records = self._run(admin.history(self.name, shard, skip=skip, most=most))
            with self._making_sense():
                found = [(id, _record(at, packed)) for id, at, packed in records]
            yield from found
            if len(records) < most:
                break

    def history_of(self, shard: int, identity: bytes) -> dict[str, Any] | None:
        """The record of the request that is known by its fingerprint or ``identity``, on a shard;
        None if that is not kept."""
        found = self._run(admin.history(self.name, shard, ids=[exact_member(identity)]))
        with self._making_sense():
            return next((_record(at, packed) for _, at, packed in found), None)


def _record(at: float, packed: bytes) -> dict[str, Any]:
    record, ended = _history(packed), at / 1e6
    return {**msgspec.structs.asdict(record), "ended": ended, "started": ended - record.seconds}


def _summed(
    shards: list[list[admin.Sample]], resolution: int, *, one_server: bool
) -> list[dict[str, Any]]:
    """One sample for each time and run of which some shard has one. A shard that has none of that
    time has what it had before: nothing has happened there."""
    times: dict[tuple[int, str], list[admin.Sample | None]] = {}
    first_at: dict[tuple[int, str], int] = {}
    for number, samples in enumerate(shards):
        for sample in samples:
            time = sample.at // resolution, sample.run
            times.setdefault(time, [None] * len(shards))[number] = sample
            first_at[time] = min(sample.at, first_at.get(time, sample.at))
    before: dict[str, list[admin.Sample | None]] = {}
    summed = []
    for time in sorted(times, key=lambda time: (time[0], first_at[time])):
        new = times[time]
        last = before.setdefault(time[1], [None] * len(shards))
        last[:] = [now or then for now, then in zip(new, last, strict=True)]
        there = [sample for sample in new if sample]
        all_known = [sample for sample in last if sample]
        numbers = map(sum, zip(*(sample.counted for sample in all_known), strict=True))
        counted = dict(zip(admin.COUNTED, numbers, strict=True))
        unfinished = counted["created"] - counted["finished"]
        memory = [sample.memory for sample in all_known]
        summed.append(
            {
                "at": max(sample.at for sample in there),
                "run": time[1],
                **counted,
                "queued": max(0, unfinished - counted["leased"] - counted["delayed"]),
                "workers": max(sample.workers for sample in there),
                "memory": (max if one_server else sum)(memory) or None,
            }
        )
    return summed
