"""``scrapy redisq dead``: look at requests that failed for good, try them again, delete them."""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
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
    """Do what the action says; 1 if a letter that was named is not there."""
    if arguments.action in ("requeue", "purge"):
        _check_choice(arguments)
    if project.nothing_there():
        print(f"no embedded server has run in {project.embedded_folder}", file=sys.stderr)
        return 1
    with project.server() as server, project.frontier(server, arguments.name) as frontier:
        return _ACTIONS[arguments.action](arguments, frontier)


def _check_choice(arguments: Namespace) -> None:
    filters = arguments.reason is not None or arguments.slot is not None
    if arguments.action == "requeue":
        if sum([bool(arguments.ids), arguments.all, filters]) != 1:
            arguments.error("either IDs, or --all, or --reason R and --slot S")
    elif arguments.ids and filters:
        arguments.error("either IDs, or --reason R and --slot S")


def _change(arguments: Namespace, frontier: Frontier) -> int:
    """Requeue or purge."""
    ids = list(dict.fromkeys(arguments.ids)) or None
    change = frontier.requeue if arguments.action == "requeue" else frontier.purge
    changed = change(ids, reason=arguments.reason, slot=arguments.slot)
    what = "1 dead letter" if changed == 1 else f"{changed:,} dead letters"
    print(f"{clean(frontier.name)}: {what} {arguments.action}d")
    missing = len(ids) - changed if ids else 0
    if missing:
        print(f"scrapy redisq: no such dead letter: {missing:,} of the IDs", file=sys.stderr)
    return 1 if missing else 0


def _show(arguments: Namespace, frontier: Frontier) -> int:
    letter = frontier.dead_letter(arguments.id)
    if letter is None:
        print(f"scrapy redisq: no such dead letter: {arguments.id}", file=sys.stderr)
        return 1
    told = as_json(letter)
    if arguments.json:
        print(json.dumps(told))
        return 0
    detail, request = told.pop("detail"), told.pop("request")
    width = max(map(len, told))
    for name, value in told.items():
        if value is not None:
            print(f"{name:<{width}}  {clean(str(value))}")
    if request is not None:
        print(clean(json.dumps({"request": request}, indent=2, ensure_ascii=False)))
    print(clean(detail))
    return 0


def _export(arguments: Namespace, frontier: Frontier) -> int:
    letters = frontier.dead(reason=arguments.reason, slot=arguments.slot)
    if arguments.file == "-":
        _write(letters, sys.stdout.write)
        return 0
    path = Path(arguments.file)
    try:
        # All of it or nothing: an export that was cut off would look like a complete one.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
        ) as file:
            try:
                written = _write(letters, file.write)
                file.flush()
                os.fchmod(file.fileno(), 0o600)
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink()
                raise
    except OSError as error:
        print(f"scrapy redisq: {error}", file=sys.stderr)
        return 1
    what = "1 dead letter" if written == 1 else f"{written:,} dead letters"
    print(f"{clean(frontier.name)}: {what} exported to {clean(str(path))}")
    return 0


def _write(letters: Iterable[DeadLetter], write: Callable[[str], object]) -> int:
    written = 0
    for letter in letters:
        entry = base64.b64encode(letter.entry).decode()
        write(json.dumps({**as_json(letter), "entry": entry}) + "\n")
        written += 1
    return written


def _list(arguments: Namespace, frontier: Frontier) -> int:
    limit = arguments.limit
    if limit is None and not arguments.json:
        limit = SHOWN
    letters = frontier.dead(reason=arguments.reason, slot=arguments.slot)
    shown = itertools.islice(letters, limit or None)
    if arguments.json:
        for letter in shown:
            print(json.dumps(as_json(letter)), flush=True)
        return 0
    _print_list(list(shown), next(letters, None) is not None, frontier.name)
    return 0


_ACTIONS: dict[str, Callable[[Namespace, Frontier], int]] = {
    "export": _export,
    "list": _list,
    "purge": _change,
    "requeue": _change,
    "show": _show,
}


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
        if first := letter.detail.strip().partition("\n")[0]:
            out.print(Padding(Text(clean(first)[:300], style="dim"), (0, 0, 0, 2), expand=False))
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
        "error": letter.error or None,
        "status": letter.status or None,
        "detail": letter.detail,
        "claimed": _utc(letter.claimed_at) if letter.claimed_at else None,
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
