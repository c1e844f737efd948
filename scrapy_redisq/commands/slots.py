"""``scrapy redisq slots``: what waits and what is wrong, host by host; ruling one of them."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from datetime import datetime

from rich.console import RenderableType

from scrapy_redisq.commands.display import can_refresh, clean, console
from scrapy_redisq.commands.project import Project, only_frontier
from scrapy_redisq.commands.slot_table import (
    COLUMNS,
    SlotSummary,
    limit_text,
    row_of,
    slot_table,
    title,
)
from scrapy_redisq.commands.status import watch_lines, watch_live
from scrapy_redisq.commands.table import Table, write_lines
from scrapy_redisq.control import Frontier, SlotStatus
from scrapy_redisq.frontier.limits import OPTION_TAKES, parse_limit

SHOWN = 50
"""Slots listed for people if nobody says how many."""

SORTED = 1_000
"""Up to so many slots ``--limit 0`` sorts; more are printed as they come, in no order."""

FRAME = 5
"""Lines of the terminal that are not for slots."""


def run(arguments: Namespace, project: Project) -> int:
    """List slots or rule one. Raises `FrontierError` without a frontier, or several to choose."""
    if arguments.action == "limit":
        _check_limits(arguments)
    if project.nothing_there():
        print(f"no embedded server has run in {project.embedded_folder}", file=sys.stderr)
        return 1
    with project.server() as server:
        name = arguments.name or only_frontier(server)
        with project.known_frontier(server, name) as frontier:
            return _ACTIONS[arguments.action](arguments, frontier)


# Ruling


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
    given = {name: getattr(arguments, name) for name in OPTION_TAKES}
    if given["rate"] == "0":
        given["rate"] = ""
    return {name: value for name, value in given.items() if value is not None}


def _name_of(arguments: Namespace, frontier: Frontier) -> str:
    """The slot that is meant: hosts are in lower case and in ASCII in Redis."""
    given: str = arguments.slot
    with contextlib.suppress(UnicodeError):
        host = given.lower().encode("idna").decode()
        if host != given and not _is_known(frontier.slot(given)):
            return host if not given.isascii() or _is_known(frontier.slot(host)) else given
    return given


def _is_known(slot: SlotStatus) -> bool:
    return bool(slot.queued or slot.leased or slot.in_trouble or slot.status or slot.ruled)


def _waiting(slot: SlotStatus) -> str:
    if not _is_known(slot):
        return "nothing is known of it yet"
    return f"{slot.queued:,} queued, {slot.leased:,} leased"


def _pause(arguments: Namespace, frontier: Frontier) -> int:
    slot = _name_of(arguments, frontier)
    waiting = _waiting(frontier.slot(slot))
    frontier.pause(slot)
    print(
        f"{clean(frontier.name)}: {clean(slot)} is paused ({waiting}). The crawl stays open for "
        "its requests until they are resumed or dropped."
    )
    return 0


def _resume(arguments: Namespace, frontier: Frontier) -> int:
    slot = _name_of(arguments, frontier)
    before = frontier.slot(slot)
    frontier.resume(slot)
    was = "" if before.in_trouble else " (it was not held up)"
    print(f"{clean(frontier.name)}: {clean(slot)} goes on{was} ({_waiting(before)})")
    return 0


def _limit(arguments: Namespace, frontier: Frontier) -> int:
    slot = _name_of(arguments, frontier)
    if arguments.none:
        limit, head = frontier.unlimit(slot), f"the settings hold again for {clean(slot)}:"
    else:
        limit, head = frontier.limit(slot, **_limits(arguments)), f"{clean(slot)} has"
    waiting = _waiting(frontier.slot(slot))
    print(f"{clean(frontier.name)}: {head} {limit_text(limit) or 'no limit'} ({waiting})")
    return 0


def _drop(arguments: Namespace, frontier: Frontier) -> int:
    slot = _name_of(arguments, frontier)
    if arguments.yes:
        dropped = frontier.drop(slot)
        what = "1 request" if dropped == 1 else f"{dropped:,} requests"
        print(f"{clean(frontier.name)}: {what} of {clean(slot)} dropped")
        return 0
    print(
        f"{clean(frontier.name)}: {frontier.slot(slot).queued:,} queued requests of {clean(slot)} "
        "would be dropped, and those that are delayed. Nothing was done; add --yes to do it.",
        file=sys.stderr,
    )
    return 1


# Listing


def _list(arguments: Namespace, frontier: Frontier) -> int:
    if not arguments.watch:
        if arguments.json:
            _print_json(arguments, frontier)
        elif arguments.limit == 0:
            _print_all(frontier)
        else:
            console().print(_table(frontier, _most(arguments)))
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        _watch(arguments, frontier)
    return 0


def _print_all(frontier: Frontier) -> None:
    """Few as a table; many as they come, so that they need neither time nor memory before."""
    out = console()
    summary = SlotSummary()
    slots = summary.count(frontier.slots())
    first = sorted(itertools.islice(slots, SORTED), key=lambda slot: slot.rank)
    more = list(itertools.islice(slots, 1))
    if not more:
        out.print(slot_table(frontier.name, first, summary))
        return
    table = Table(COLUMNS, [row_of(slot) for slot in first])
    rest = (row_of(slot) for slot in itertools.chain(more, slots))
    write_lines(out, table.lines(out, out.width, rest))
    out.print(title(frontier.name, summary))


def _most(arguments: Namespace) -> int:
    return SHOWN if arguments.limit is None else arguments.limit or sys.maxsize


def _table(frontier: Frontier, most: int) -> RenderableType:
    summary = SlotSummary()
    shown = _weightiest(summary.count(frontier.slots()), most)
    return slot_table(frontier.name, shown, summary)


def _weightiest(slots: Iterable[SlotStatus], most: int) -> list[SlotStatus]:
    # With ties in the order of names.
    return heapq.nsmallest(most, slots, key=lambda slot: slot.rank)


def _print_json(arguments: Namespace, frontier: Frontier) -> None:
    slots: Iterable[SlotStatus] = frontier.slots()
    if arguments.limit:
        slots = _weightiest(slots, arguments.limit)
    for slot in slots:
        print(json.dumps({"frontier": frontier.name, **slot.to_json()}))
    sys.stdout.flush()


def _watch(arguments: Namespace, frontier: Frontier) -> None:
    out = console()
    if arguments.json:
        watch_lines(lambda: _print_json(arguments, frontier))
    elif can_refresh(out):
        # As many as fit: what is taller than the terminal cannot be refreshed.
        watch_live(out, lambda: _table(frontier, min(_most(arguments), max(1, out.height - FRAME))))
    else:

        def look() -> None:
            print(datetime.now().strftime("%H:%M:%S"))
            out.print(_table(frontier, _most(arguments)))
            sys.stdout.flush()

        watch_lines(look)


_ACTIONS: dict[str, Callable[[Namespace, Frontier], int]] = {
    "drop": _drop,
    "limit": _limit,
    "list": _list,
    "pause": _pause,
    "resume": _resume,
}
