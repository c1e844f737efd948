"""``scrapy redisq slots``: what waits and what is wrong, host by host; ruling one of them."""

from __future__ import annotations

import heapq
import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from scrapy_redisq.commands.display import ago, can_refresh, clean, console, table
from scrapy_redisq.commands.options import (
    add_command,
    add_frontier,
    add_json,
    add_limit,
    add_watch,
    add_yes,
)
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.watching import show
from scrapy_redisq.control import SlotStatus
from scrapy_redisq.control.slot_status import LIMIT_PARTS
from scrapy_redisq.control.words import counted, time_text
from scrapy_redisq.frontier.limits import OPTION_TAKES, SlotLimit, parse_limit

SHOWN = 50
"""Slots listed for people if nobody says how many."""

PORTION = 500
"""Slots of one table."""

FRAME = 5
"""Lines of the terminal that are not for slots."""

TEXT = """\
Show the slots (hosts) of a frontier: requests that wait and are with workers, the next start,
limits and where they come from, what is wrong. Those that are paused, set aside or backed off come
first, then those with the most requests. A slot with delayed requests alone is not listed.

Without NAME: the only frontier of the server. If a frontier has the name of an action, write it
after --.

Actions, each with its own help (scrapy redisq slots pause -h), take effect within a second, while
the crawl runs.
"""

ACTIONS = {
    "pause": """\
Pause a slot: no worker starts a request of it until it is resumed. Its requests are kept, and the
crawl stays open for them. Holds through restarts and in the next runs.
""",
    "resume": """\
Let a slot go on at once: after a pause, in a back-off, or when it was set aside.
""",
    "limit": """\
Give a slot a limit for all workers together. The limit takes the place of the settings' limit. An
option that is left out stays as it is; 0 removes a limit. Holds through restarts and in the next
runs, until --none.
""",
    "drop": """\
Give up the requests of a slot that are queued or delayed. They count as finished (dropped), and
remain seen. Requests that workers hold go on. Requests that are found later are added as usual:
pause the slot first, so that none of them is started.
""",
}


def add_options(commands: Any) -> None:
    """The sub command, its actions, and their options."""
    slots = add_command(
        commands,
        "slots",
        run,
        help="hosts: what waits, limits, trouble; pause, resume, limit or drop one",
        text=TEXT,
        usage="%(prog)s [NAME] [--limit N] [--watch] [--json]\n"
        "       %(prog)s {pause,resume,limit,drop} [NAME] SLOT …",
    )
    add_frontier(slots)
    add_limit(slots, SHOWN)
    add_watch(slots)
    add_json(slots, "one JSON object for each, on one line")
    of_action = {}
    for action, text in ACTIONS.items():
        check = _check_limits if action == "limit" else None
        parser = add_command(commands, f"slots {action}", rule, text=text, check=check)
        add_frontier(parser)
        parser.add_argument("slot", metavar="SLOT", help="a host as slots shows it")
        of_action[action] = parser
    add_yes(of_action["drop"], "go")
    limit = of_action["limit"]
    limit.add_argument("--delay", metavar="SECONDS", help="between two starts")
    limit.add_argument("--concurrency", metavar="N", help="requests in progress at a time")
    limit.add_argument(
        "--rate", metavar="RATE", help="requests in a time, such as 30/m; per s, m, h or d"
    )
    limit.add_argument("--burst", metavar="N", help="so many of the rate may come at once")
    limit.add_argument(
        "--none", action="store_true", help="take it away: the settings' limit holds again"
    )


# Ruling


def rule(arguments: Namespace, project: Project) -> int:
    """Do to one slot what the action says. Raises `FrontierError` without a frontier, or several
    to choose."""
    action = arguments.command.partition(" ")[2]
    with project.chosen_frontier(arguments.name) as frontier:
        slot = arguments.slot
        name, shown, before = clean(frontier.name), clean(slot), frontier.slot(slot)
        if action == "drop" and not arguments.yes:
            print(
                f"{name}: {before.queued:,} queued requests of {shown} would be dropped, and those "
                "that are delayed. Nothing was done; add --yes to do it.",
                file=sys.stderr,
            )
            return 1
        if action == "drop":
            print(f"{name}: {counted(frontier.drop(slot), 'request')} of {shown} dropped")
        elif action == "pause":
            frontier.pause(slot)
            print(
                f"{name}: {shown} is paused ({_waiting(before)}). The crawl stays open for its "
                "requests until they are resumed or dropped."
            )
        elif action == "resume":
            frontier.resume(slot)
            was = "" if before.in_trouble else " (it was not held up)"
            print(f"{name}: {shown} goes on{was} ({_waiting(before)})")
        elif arguments.none:
            limit = limit_text(frontier.unlimit(slot))
            print(f"{name}: the settings hold again for {shown}: {limit} ({_waiting(before)})")
        else:
            limit = limit_text(frontier.limit(slot, **_limits(arguments)))
            print(f"{name}: {shown} has {limit} ({_waiting(before)})")
    return 0


def _check_limits(arguments: Namespace) -> None:
    given = _limits(arguments)
    if bool(given) == arguments.none:
        arguments.error("either --none, or some of --delay, --concurrency, --rate and --burst")
    for name, value in given.items():
        try:
            parse_limit({name: value})
        except ValueError:
            slot, takes = clean(arguments.slot), OPTION_TAKES[name]
            arguments.error(f"--{name} {clean(value)} for {slot}: takes {takes}")


def _limits(arguments: Namespace) -> dict[str, str]:
    """The options of a limit that were given; no rate is "", which "0" stands for here."""
    given = {name: getattr(arguments, name) for name in LIMIT_PARTS}
    if given["rate"] == "0":
        given["rate"] = ""
    return {name: value for name, value in given.items() if value is not None}


def _waiting(slot: SlotStatus) -> str:
    if not (slot.queued or slot.leased or slot.in_trouble or slot.status or slot.ruled):
        return "nothing is known of it yet"
    return f"{slot.queued:,} queued, {slot.leased:,} leased"


# Listing


def run(arguments: Namespace, project: Project) -> int:
    """List slots. Raises `FrontierError` without a frontier, or several to choose."""
    out = console()
    most = SHOWN if arguments.limit is None else arguments.limit or sys.maxsize
    if arguments.watch and can_refresh(out):
        # As many as fit: what is taller than the terminal cannot be refreshed.
        most = min(most, max(1, out.height - FRAME))
    with project.chosen_frontier(arguments.name) as frontier:

        def parts() -> Iterator[RenderableType]:
            counts: Counter[str] = Counter()
            shown = _weightiest(_counting(frontier.slots(), counts), most)
            return slot_tables(frontier.name, shown, counts)

        def print_json() -> None:
            slots: Iterable[SlotStatus] = frontier.slots()
            for slot in _weightiest(slots, arguments.limit) if arguments.limit else slots:
                print(json.dumps({"frontier": frontier.name, **slot.to_json()}))

        if arguments.watch or arguments.json:
            return show(arguments, lambda: Group(*parts()), print_json)
        for part in parts():  # a table of 100,000 slots takes a minute, and 500 MB at once
            out.print(part)
        return 0


def _weightiest(slots: Iterable[SlotStatus], most: int) -> list[SlotStatus]:
    # With ties in the order of names.
    return heapq.nsmallest(most, slots, key=lambda slot: slot.rank)


def _counting(slots: Iterable[SlotStatus], counts: Counter[str]) -> Iterator[SlotStatus]:
    """Pass ``slots`` on, and count them."""
    for slot in slots:
        counts["slots"] += 1
        counts["paused"] += slot.paused is not None
        counts["set aside"] += slot.set_aside is not None
        counts["backed off"] += slot.in_trouble and not (slot.paused or slot.set_aside)
        yield slot


def slot_tables(
    frontier: str, shown: Sequence[SlotStatus], counts: Counter[str]
) -> Iterator[RenderableType]:
    """How many there are of all kinds, and ``shown`` in their order, by `PORTION`."""
    total = counts["slots"]
    title = Text.assemble(
        (clean(frontier), "bold"), "  ", counted(total, "slot") if total else "no slots"
    )
    for what in ("paused", "set aside", "backed off"):
        if counts[what]:
            title.append(f", {counts[what]:,} {what}", "yellow")
    yield title
    for first in range(0, len(shown), PORTION):
        columns = ("slot", "queued", "leased", "last", "next", "trouble, limits")
        rows = [
            (
                clean(slot.slot),
                f"{slot.queued:,}",
                f"{slot.leased:,}",
                str(slot.status or ""),
                _next_start(slot),
                Text("\n").join(filter(None, (_trouble(slot), _limits_of(slot)))),
            )
            for slot in shown[first : first + PORTION]
        ]
        yield Text("")
        yield table(columns, rows, left={"trouble, limits"})
    if (more := total - len(shown)) > 0:
        yield Text(f"{more:,} more: --limit 0 shows all, --json too.", style="dim")


def _next_start(slot: SlotStatus) -> str:
    if slot.next_start is None or not slot.queued:
        return ""
    return time_text(slot.next_start) if slot.next_start >= 0.05 else "now"


def _apart(seconds: float) -> str:
    return f"{time_text(seconds) if seconds >= 60 else f'{seconds:.3g} s'} apart"


def limit_text(limit: SlotLimit) -> str:
    """A limit in words: "2 s apart, 30/m, 2 at a time"."""
    parts = []
    if limit.delay:
        parts.append(_apart(limit.delay))
    if limit.rate:
        parts.append(rate_text(limit.rate) + (f" burst {limit.burst:,}" if limit.burst > 1 else ""))
    if limit.concurrency:
        parts.append(f"{limit.concurrency:,} at a time")
    return ", ".join(parts) or "no limit"


def rate_text(per_second: float) -> str:
    """As it is given: the number in the shortest time in which it is a whole one."""
    for unit, seconds in (("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400)):
        number = per_second * seconds
        if number >= 0.999 and abs(number - round(number)) < 0.001 * number:
            return f"{round(number):,}/{unit}"
    return f"{per_second * 86_400:,.4g}/d"


def _limits_of(slot: SlotStatus) -> Text:
    """The limit and where it comes from, and the delay if another one is longer."""
    parts = []
    if slot.limit_from:
        style = "cyan" if slot.limit_from == "person" else "dim"
        parts.append(Text.assemble(limit_text(slot.limit), (f" ({slot.limit_from})", style)))
    if slot.delay_from in {"robots.txt", "AutoThrottle"}:
        parts.append(Text.assemble(_apart(slot.delay), (f" ({slot.delay_from})", "dim")))
    return Text(", ").join(parts)


def _trouble(slot: SlotStatus) -> Text:
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
