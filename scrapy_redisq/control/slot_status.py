"""Slots as people see them and rule them, while a crawl runs or between crawls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from scrapy_redisq.control.stored import StoredFrontier
from scrapy_redisq.control.words import utc
from scrapy_redisq.errors import FrontierError
from scrapy_redisq.frontier import admin
from scrapy_redisq.frontier.admin import SlotRecord
from scrapy_redisq.frontier.limits import SlotLimit, parse_limit
from scrapy_redisq.frontier.names import slot_name

SOURCES = ("ready", "busy", "aside", "paused", "ruled")
"""Keys of the frontier that name the slots worth listing."""

LIMIT_PARTS = ("delay", "rate", "burst", "concurrency")
"""The options of a limit in the order of `SlotLimit.to_text`."""


@dataclass(frozen=True)
class SlotStatus:
    """One slot. Times are seconds, points in time UTC in ISO format.

    ``next_start`` is None while the slot is paused. ``delay`` is the longest of the ``limit``'s,
    robots.txt's and AutoThrottle's, by ``delay_from``. ``limit_from``: "settings", "person" or
    None. ``failures`` are counted in a row. ``due_for``: for how long nobody has claimed from it
    although one might; None if it waits for something, or has no requests.
    """

    slot: str
    queued: int
    leased: int
    next_start: float | None
    delay: float
    delay_from: str | None
    limit: SlotLimit
    limit_from: str | None
    failures: int
    parked: float
    set_aside: str | None
    paused: str | None
    ruled: str | None
    status: int | None
    due_for: float | None = None

    @property
    def in_trouble(self) -> bool:
        """Somebody should have a look: it is paused, set aside, or backed off."""
        return bool(self.paused or self.set_aside or self.failures or self.parked)

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """The smaller, the more it matters to people."""
        trouble = 3 if self.paused else 2 if self.set_aside else 1 if self.in_trouble else 0
        return -trouble, -self.queued, -self.leased, self.slot

    @classmethod
    def of(cls, record: SlotRecord) -> SlotStatus:
        """From what a script says of it."""
        limit = SlotLimit.from_text(
            f"{record.limit_delay} {record.interval} {record.burst} {record.concurrency}"
        )
        limit_from = "person" if record.own else "settings" if limit else None
        delay, delay_from = max(
            (record.limit_delay, limit_from or ""),
            (record.robots_delay, "robots.txt"),
            (record.throttle_delay, "AutoThrottle"),
            key=lambda known: known[0],
        )
        return cls(
            slot=record.slot,
            queued=record.queued,
            leased=record.leased,
            next_start=None if record.paused else record.next_start / 1e6,
            delay=delay / 1e6,
            delay_from=delay_from if delay else None,
            limit=limit,
            limit_from=limit_from,
            failures=record.failures,
            parked=record.parked / 1e6,
            set_aside=_utc(record.set_aside),
            paused=_utc(record.paused),
            ruled=_utc(record.ruled),
            status=abs(record.status) if record.status not in {0, -1} else None,
            due_for=None if record.paused or record.due_for < 0 else record.due_for / 1e6,
        )

    def to_json(self) -> dict[str, Any]:
        """All of it in JSON's types; the limit's parts beside the rest, 0: no such limit."""
        told = {name: value for name, value in vars(self).items() if name != "limit"}
        limit = {**asdict(self.limit), "rate": round(self.limit.rate, 6)}
        del limit["budget"]  # which is not told of
        return {**told, "limit_delay": limit.pop("delay"), **limit}


def _utc(microseconds: int) -> str | None:
    return utc(microseconds / 1e6) if microseconds else None


class SlotMethods(StoredFrontier):
    """The part of `Frontier` that is about slots.

    What a person says of a slot holds for all workers within a second, through restarts and in the
    next runs, until a `reset`. All but `slots` raise `FrontierError` if there is no frontier, or
    one without slots.
    """

    def slots(self) -> Iterator[SlotStatus]:
        """Every slot that has requests, or that is set aside, paused or limited by a person; in no
        order. Reads about 200 at a time. What changes meanwhile may be missed, but no slot comes
        twice. Requests that are delayed do not count."""
        for shard in self._shards():
            known: set[str] = set()
            cursors: Mapping[str, str] = dict.fromkeys(SOURCES, "0")
            while cursors:
                cursors, records = self._run(admin.list_slots(self.name, shard, cursors=cursors))
                for record in records:
                    if record.slot not in known:
                        known.add(record.slot)
                        yield SlotStatus.of(record)

    def slot(self, slot: str) -> SlotStatus:
        """One slot, whether anything is known of it or not."""
        slot, shard = self._place_of(slot)
        _, (record,) = self._run(admin.list_slots(self.name, shard, names=[slot]))
        return SlotStatus.of(record)

    def slot_queues(self, slot: str) -> list[dict[str, int]]:
        """Queues of a slot: ``priority`` and ``queued``, the most urgent first, at most 100."""
        slot, shard = self._place_of(slot)
        queues = self._run(admin.slot_queues(self.name, shard, slot))
        return [{"priority": priority, "queued": queued} for priority, queued in queues]

    def pause(self, slot: str) -> None:
        """Start nothing of ``slot`` before `resume`; what is being downloaded goes on. Its requests
        are kept, and the crawl stays open for them."""
        self._rule(slot, paused=True)
        self.note("pause", slot)

    def resume(self, slot: str) -> None:
        """Let ``slot`` go on at once: after `pause`, in a back-off, or when it was set aside."""
        self._rule(slot, paused=False)
        self.note("resume", slot)

    def limit(self, slot: str, **options: Any) -> SlotLimit:
        """Give ``slot`` a limit in the place of that of the settings, until `unlimit`; -> the limit
        that holds now. Options are those of REDISQ_SLOT_LIMITS; what is left out stays as it is.
        Raises ValueError for what is no limit, `FrontierError` for a pattern of slots."""
        if slot == "*" or slot.startswith("*."):
            raise FrontierError(f"{slot} is no slot: patterns stand in REDISQ_SLOT_LIMITS alone")
        if "budget" in options:
            raise ValueError("budget: is given by the settings alone (REDISQ_SLOT_BUDGET)")
        parts = zip(LIMIT_PARTS, parse_limit(options).to_text().split(), strict=True)
        own = " ".join(text if name in options else "-" for name, text in parts)
        self._rule(slot, own=own)
        given = ", ".join(f"{name} {value}" for name, value in options.items())
        self.note("limit", f"{slot}: {given}")
        return parse_limit(options, self.slot(slot).limit)

    def unlimit(self, slot: str) -> SlotLimit:
        """Let the settings' limit of ``slot`` hold again; -> the limit that holds now."""
        self._rule(slot, own="")
        self.note("unlimit", slot)
        return self.slot(slot).limit

    def drop(self, slot: str) -> int:
        """Give up the requests of ``slot`` that are queued or delayed; -> how many. They count as
        finished (``dropped``) and remain seen. What workers hold goes on."""
        slot, shard = self._place_of(slot)
        dropped, cursor = 0, "0"
        try:
            while cursor:
                n, cursor = self._run(admin.drop(self.name, shard, slot, cursor))
                dropped += n
        finally:
            self.note("drop", slot, dropped)
        return dropped

    def _rule(self, slot: str, **what: bool | str) -> None:
        slot, shard = self._place_of(slot)
        if not self._run(admin.rule(self.name, shard, slot, **what)):
            raise self._absent()

    def _place_of(self, slot: str) -> tuple[str, int]:
        """The slot as keys have it, and its shard."""
        config = self._known_config()
        if config.scheduling == "priority":
            raise FrontierError(
                f"frontier {self.name!r} has one queue for all hosts, and no slots to rule: "
                "REDISQ_SCHEDULING is 'priority'"
            )
        slot = slot_name(slot)
        return slot, config.shard_of(self.name, slot)
