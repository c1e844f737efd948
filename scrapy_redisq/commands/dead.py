"""``scrapy redisq dead``: look at requests that failed for good, and try them again."""

from __future__ import annotations

import itertools
import json
import math
import sys
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from rich.padding import Padding
from rich.text import Text

from scrapy_redisq.commands.display import ago, clean, console
from scrapy_redisq.commands.project import Project
from scrapy_redisq.errors import Undecodable
from scrapy_redisq.frontier import DeadLetter, Frontier
from scrapy_redisq.serializer import loads_fields

SHOWN = 20
"""Dead letters listed for people if nobody says how many."""


def run(arguments: Namespace, project: Project) -> int:
    """List or requeue."""
    if arguments.action == "list":
        return _list(arguments, project)
    ways = [bool(arguments.ids), arguments.all, arguments.reason is not None]
    if sum(ways) != 1:
        arguments.error("either IDs, or --all, or --reason R")
    if project.nothing_there():
        return _nothing(project)
    with project.server() as server, project.frontier(server, arguments.name) as frontier:
        return _requeue(arguments, frontier)


def _nothing(project: Project) -> int:
    print(f"no embedded server has run in {project.embedded_folder}", file=sys.stderr)
    return 1


def _requeue(arguments: Namespace, frontier: Frontier) -> int:
    ids = list(dict.fromkeys(arguments.ids)) or None
    requeued = frontier.requeue(ids, reason=arguments.reason)
    what = "1 dead letter" if requeued == 1 else f"{requeued:,} dead letters"
    print(f"{clean(frontier.name)}: {what} requeued")
    missing = len(ids) - requeued if ids else 0
    if missing:
        print(f"scrapy redisq: no such dead letter: {missing:,} of the IDs", file=sys.stderr)
    return 1 if missing else 0


def _list(arguments: Namespace, project: Project) -> int:
    if project.nothing_there():
        return _nothing(project)
    limit = arguments.limit
    if limit is None and not arguments.json:
        limit = SHOWN
    with project.server() as server, project.frontier(server, arguments.name) as frontier:
        letters = (
            letter
            for letter in frontier.dead()
            if arguments.reason is None or letter.reason == arguments.reason
        )
        shown = itertools.islice(letters, limit or None)
        if arguments.json:
            for letter in shown:
                print(json.dumps(as_json(letter)), flush=True)
        else:
            _print_list(list(shown), next(letters, None) is not None, frontier.name)
    return 0


def _print_list(letters: list[DeadLetter], more: bool, name: str) -> None:
    out = console()
    if not letters:
        out.print(Text(f"{clean(name)}: no dead letters"))
    for letter in letters:
        head = Text.assemble(
            (letter.id, "bold"),
            "  ",
            (clean(letter.reason), "red"),
            f"  {ago(_utc(letter.at))} ago",
        )
        if letter.deliveries:
            head.append(f", {letter.deliveries} workers died with it")
        out.print(head)
        # Below each other over the whole width: URLs are long, and made to be copied.
        out.print(
            Padding(Text(clean(_summary(letter)), overflow="fold"), (0, 0, 0, 2), expand=False)
        )
        if last := letter.detail.strip().rpartition("\n")[2].strip():
            out.print(Padding(Text(clean(last)[:300], style="dim"), (0, 0, 0, 2), expand=False))
    if more:
        out.print(Text("There are more: --limit 0 shows all.", style="dim"))


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _summary(letter: DeadLetter) -> str:
    """The request on one line: what it fetches, and by which callback if it names one."""
    try:
        fields = loads_fields(letter.entry)
    except Undecodable as error:
        return f"({error})"
    callback = f" → {fields['callback']}" if "callback" in fields else ""
    method = "" if fields["method"] == "GET" else f"{fields['method']} "
    return f"{method}{fields['url']}{callback}"


def as_json(letter: DeadLetter) -> dict[str, Any]:
    """All of a dead letter in JSON's types. ``request`` is None if it cannot be decoded."""
    request = error = None
    try:
        request = _plain(loads_fields(letter.entry))
    except Undecodable as undecodable:
        error = str(undecodable)
    return {
        "id": letter.id,
        "reason": letter.reason,
        "detail": letter.detail,
        "at": _utc(letter.at),
        "slot": letter.slot,
        "priority": letter.priority,
        "worker": letter.worker,
        "deliveries": letter.deliveries,
        "request": request,
        "undecodable": error,
    }


def _plain(value: Any) -> Any:
    """``value`` in JSON's types: bytes as text, other sequences as lists, the rest as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {_key(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value)


def _key(name: Any) -> str:
    return str(_plain(name))
