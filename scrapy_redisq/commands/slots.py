"""``scrapy redisq slots``: what waits and what is wrong, host by host; ruling one of them."""

from __future__ import annotations

import contextlib
import heapq
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import RenderableType

from scrapy_redisq.commands.display import can_refresh, clean, console
from scrapy_redisq.commands.options import (
    GLOBAL_OPTIONS,
    add_command,
    add_frontier,
    add_json,
    add_limit,
    add_watch,
)
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.slot_table import SlotSummary, limit_text, slot_table
from scrapy_redisq.commands.watching import show
from scrapy_redisq.control import Frontier, SlotStatus
from scrapy_redisq.control.words import counted
from scrapy_redisq.frontier.limits import OPTION_TAKES, parse_limit

SHOWN = 50
"""Slots listed for people if nobody says how many."""

FRAME = 5
"""Lines of the terminal that are not for slots."""

TEXT = """\
Show the slots (hosts) of a frontier: how many requests wait and are with workers, when the next
may be started, the limits that hold and where they come from, what is wrong. Those that are
paused, set aside or backed off come first, then those with the most requests. A slot that has
nothing but delayed requests (retries that wait) is not listed.

Without NAME: the only frontier of the server. One that is called like an action is given after --.

Actions, each with its own help (scrapy redisq slots pause -h):
  pause    start nothing of a slot until it is resumed
  resume   let a slot go on at once: after a pause, in a back-off, or set aside
  limit    give a slot another limit than that of the settings
  drop     give up a slot's requests
They take effect within a second, while the crawl runs.
"""

ACTION_TEXTS = {
    "pause": """\
Pause a slot: no worker starts a request of it until it is resumed; what is being downloaded goes
on. Its requests are kept, and the crawl stays open for them: to let it end, resume or drop them.
Holds through restarts and in the next runs.
""",
    "resume": """\
Let a slot go on at once: after a pause, in a back-off, or when it was set aside.
""",
    "limit": """\
Give a slot a limit for all workers together, in the place of that of the settings. What is left out
stays as it is; 0 takes one away. Holds through restarts and in the next runs, until --none.
""",
    "drop": """\
Give up the requests of a slot that are queued or delayed. They count as finished (dropped), so that
the crawl can end without them, and remain seen. What workers hold goes on, and what is found later
is added as ever: pause the slot first if it should get nothing more.
""",
}


def add_options(commands: Any) -> None:
    """The sub command, its actions, and their options."""
    slots = add_command(
        commands,
        "slots",
        help="hosts: what waits, limits, trouble; pause, resume, limit or drop one",
        text=TEXT,
        usage="%(prog)s [NAME] [--limit N] [--watch] [--json]\n"
        "       %(prog)s {pause,resume,limit,drop} [NAME] SLOT …",
    )
    slots.set_defaults(action="list")
    add_frontier(slots)
    add_limit(slots, SHOWN)
    add_watch(slots)
    add_json(slots, "one JSON object for each, on one line")
    for action, text in ACTION_TEXTS.items():
        parser = commands.add_parser(f"slots {action}", description=text, epilog=GLOBAL_OPTIONS)
        parser.set_defaults(action=action, error=parser.error)
        add_frontier(parser)
        parser.add_argument("slot", metavar="SLOT", help="a host, or what download_slot says")
        if action == "limit":
            _add_limits(parser)
        if action == "drop":
            parser.add_argument(
                "--yes", action="store_true", help="do it; without this, only say what would go"
            )


def _add_limits(parser: ArgumentParser) -> None:
    for name, metavar, text in (
        ("delay", "SECONDS", "between two starts"),
        ("concurrency", "N", "requests in progress at a time"),
        ("rate", "RATE", "requests in a time, such as 30/m; per s, m, h or d"),
        ("burst", "N", "so many of the rate may come at once"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=text)
    parser.add_argument(
        "--none", action="store_true", help="take it away: the settings' limit holds again"
    )


def run(arguments: Namespace, project: Project) -> int:
    """List slots or rule one. Raises `FrontierError` without a frontier, or several to choose."""
    if arguments.action == "limit":
        _check_limits(arguments)
    with project.chosen_frontier(arguments.name) as frontier:
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
        print(f"{clean(frontier.name)}: {counted(dropped, 'request')} of {clean(slot)} dropped")
        return 0
    print(
        f"{clean(frontier.name)}: {frontier.slot(slot).queued:,} queued requests of {clean(slot)} "
        "would be dropped, and those that are delayed. Nothing was done; add --yes to do it.",
        file=sys.stderr,
    )
    return 1


# Listing


def _list(arguments: Namespace, frontier: Frontier) -> int:
    out = console()
    most = SHOWN if arguments.limit is None else arguments.limit or sys.maxsize
    if arguments.watch and can_refresh(out):
        # As many as fit: what is taller than the terminal cannot be refreshed.
        most = min(most, max(1, out.height - FRAME))
    return show(
        arguments, lambda: _table(frontier, most), lambda: _print_json(frontier, arguments.limit)
    )


def _table(frontier: Frontier, most: int) -> RenderableType:
    summary = SlotSummary()
    shown = _weightiest(summary.count(frontier.slots()), most)
    return slot_table(frontier.name, shown, summary)


def _weightiest(slots: Iterable[SlotStatus], most: int) -> list[SlotStatus]:
    # With ties in the order of names.
    return heapq.nsmallest(most, slots, key=lambda slot: slot.rank)


def _print_json(frontier: Frontier, limit: int | None) -> None:
    slots: Iterable[SlotStatus] = frontier.slots()
    for slot in _weightiest(slots, limit) if limit else slots:
        print(json.dumps({"frontier": frontier.name, **slot.to_json()}))


_ACTIONS: dict[str, Callable[[Namespace, Frontier], int]] = {
    "drop": _drop,
    "limit": _limit,
    "list": _list,
    "pause": _pause,
    "resume": _resume,
}
