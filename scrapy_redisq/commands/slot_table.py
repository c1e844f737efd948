"""Slots as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from scrapy_redisq.commands.display import ago, clean, duration
from scrapy_redisq.commands.table import Cell, Column, Table
from scrapy_redisq.control import SlotStatus
from scrapy_redisq.control.words import counted
from scrapy_redisq.frontier.limits import SlotLimit


@dataclass
class SlotSummary:
    """What a listing saw, beside what is shown of it."""

    slots: int = 0
    paused: int = 0
    set_aside: int = 0
    backed_off: int = 0

    def count(self, slots: Iterable[SlotStatus]) -> Iterator[SlotStatus]:
        """Pass ``slots`` on, and count them."""
        for slot in slots:
            self.slots += 1
            self.paused += slot.paused is not None
            self.set_aside += slot.set_aside is not None
            self.backed_off += slot.in_trouble and not (slot.paused or slot.set_aside)
            yield slot


COLUMNS = (
    Column("slot", folds=True, left=True),
    *map(Column, ("queued", "leased", "last", "next")),
    Column("trouble, limits", folds=True, left=True),
)


def slot_table(frontier: str, shown: Sequence[SlotStatus], summary: SlotSummary) -> RenderableType:
    """``shown`` in their order, and how many there are of all kinds."""
    parts: list[RenderableType] = [title(frontier, summary)]
    if shown:
        parts += [Text(""), Table(COLUMNS, [row_of(slot) for slot in shown])]
    if (more := summary.slots - len(shown)) > 0:
        parts.append(Text(f"{more:,} more: --limit 0 shows all, --json too.", style="dim"))
    return Group(*parts)


def title(frontier: str, summary: SlotSummary) -> Text:
    """How many there are, and how many of them are held up."""
    counts = (
        (summary.paused, "paused"),
        (summary.set_aside, "set aside"),
        (summary.backed_off, "backed off"),
    )
    title = Text.assemble((clean(frontier), "bold"), "  ", _slots(summary.slots))
    for number, what in counts:
        if number:
            title.append(f", {number:,} {what}", "yellow")
    return title


def _slots(number: int) -> str:
    return counted(number, "slot") if number else "no slots"


def row_of(slot: SlotStatus) -> list[Cell]:
    """What the table has of a slot."""
    remarks = [text for text in (trouble_of(slot), limits_of(slot)) if text]
    return [
        clean(slot.slot),
        f"{slot.queued:,}",
        f"{slot.leased:,}",
        str(slot.status or ""),
        _next_start(slot),
        Text("\n").join(remarks) if remarks else "",
    ]


def _next_start(slot: SlotStatus) -> str:
    if slot.next_start is None or not slot.queued:
        return ""
    return _wait(slot.next_start) if slot.next_start >= 0.05 else "now"


def _seconds(seconds: float) -> str:
    """A limit as it was given, if it is short."""
    return duration(seconds) if seconds >= 60 else f"{seconds:.3g} s"


def _measured(seconds: float) -> str:
    return duration(seconds) if seconds >= 60 else f"{seconds:.2g} s"


def _wait(seconds: float) -> str:
    return duration(seconds) if seconds >= 60 else f"{seconds:.1f} s"


def limit_text(limit: SlotLimit) -> str:
    """A limit in words: "2 s apart, 30/m, 2 at a time"; "" for none."""
    parts = []
    if limit.delay:
        parts.append(f"{_seconds(limit.delay)} apart")
    if limit.rate:
        parts.append(rate_text(limit.rate) + (f" burst {limit.burst:,}" if limit.burst > 1 else ""))
    if limit.concurrency:
        parts.append(f"{limit.concurrency:,} at a time")
    return ", ".join(parts)


def rate_text(per_second: float) -> str:
    """As it is given: the number in the shortest time in which it is a whole one."""
    for unit, seconds in (("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)):
        number = per_second * seconds
        if number >= 0.999 and abs(number - round(number)) < 0.001 * number:
            return f"{round(number):,}/{unit}"
    return f"{per_second * 86_400:,.4g}/d"


def limits_of(slot: SlotStatus) -> Text:
    """The limit and where it comes from, and the delay if another one is longer."""
    text = Text()
    if slot.limit_from:
        text.append(limit_text(slot.limit) or "none")
        text.append(f" ({slot.limit_from})", "cyan" if slot.limit_from == "person" else "dim")
    if slot.delay_from in {"robots.txt", "AutoThrottle"}:
        text.append((", " if text else "") + f"{_measured(slot.delay)} apart")
        text.append(f" ({slot.delay_from})", "dim")
    return text


def trouble_of(slot: SlotStatus) -> Text:
    """Why nothing or little of it is started."""
    parts = []
    if slot.paused:
        parts.append(f"paused {ago(slot.paused)} ago")
    if slot.set_aside:
        parts.append(f"set aside {ago(slot.set_aside)} ago")
    if slot.failures:
        parts.append(counted(slot.failures, "failure"))
    elif slot.parked:
        parts.append("parked")
    return Text(", ".join(parts), style="yellow" if slot.in_trouble else "dim")
