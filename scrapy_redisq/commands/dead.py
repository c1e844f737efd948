"""``scrapy redisq dead``: look at requests that failed for good, try them again, delete them."""

from __future__ import annotations

import itertools
import json
import sys
from argparse import Namespace
from collections.abc import Callable

from rich.text import Text

from scrapy_redisq.commands.display import ago, clean, console
from scrapy_redisq.commands.export import export, purge_exported
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.table import write_lines
from scrapy_redisq.control import DeadLetter, Frontier
from scrapy_redisq.control.told_letters import as_json, summary, utc

SHOWN = 20
"""Dead letters listed for people if nobody says how many."""


def run(arguments: Namespace, project: Project) -> int:
    """Do what the action says; 1 if a letter that was named is not there."""
    if arguments.action in ("requeue", "purge"):
        _check_choice(arguments)
    if project.nothing_there():
        print(f"no embedded server has run in {project.embedded_folder}", file=sys.stderr)
        return 1
    with project.server() as server, project.known_frontier(server, arguments.name) as frontier:
        return _ACTIONS[arguments.action](arguments, frontier)


def _check_choice(arguments: Namespace) -> None:
    filters = arguments.reason is not None or arguments.slot is not None
    purge = arguments.action == "purge"
    exported = purge and arguments.exported is not None
    chosen = sum([bool(arguments.ids), arguments.all, filters, exported])
    if chosen > 1 or (chosen == 0 and not purge):
        choice = "either IDs, or --all, or --reason R and --slot S"
        arguments.error(f"{choice}, or --exported FILE" if purge else choice)
    arguments.sure = chosen == 1


def _is_meant(frontier: Frontier) -> bool:
    """Whether all dead letters are to be deleted, of whom a person did not say so; scripts mean
    it."""
    if not sys.stdin or not sys.stdin.isatty():
        return True
    dead = frontier.status()["dead"]
    print(f"Delete all dead letters of {clean(frontier.name)} ({dead:,} counted)? [y/N] ", end="")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _change(arguments: Namespace, frontier: Frontier) -> int:
    """Requeue or purge."""
    if arguments.action == "purge" and arguments.exported is not None:
        return purge_exported(arguments, frontier)
    if not arguments.sure and not _is_meant(frontier):
        return 1
    ids = list(dict.fromkeys(arguments.ids)) or None
    change = frontier.requeue if arguments.action == "requeue" else frontier.purge
    changed = change(ids, reason=arguments.reason, slot=arguments.slot)
    what = "1 dead letter" if changed == 1 else f"{changed:,} dead letters"
    print(f"{clean(frontier.name)}: {what} {arguments.action}d")
    left = 0
    if arguments.action == "requeue":
        left = _without_request(arguments, frontier, ids)
    if left:
        print(
            f"scrapy redisq: {left:,} hold no request that could be tried again, and stay: "
            "'dead list' tells why, 'dead purge' deletes them",
            file=sys.stderr,
        )
    missing = len(ids) - changed - left if ids else 0
    if missing > 0:
        print(f"scrapy redisq: no such dead letter: {missing:,} of the IDs", file=sys.stderr)
    return 1 if ids and changed < len(ids) else 0


def _without_request(arguments: Namespace, frontier: Frontier, ids: list[str] | None) -> int:
    """How many of the letters that were to be requeued could not be."""
    letters = (
        frontier.dead_letters(ids)
        if ids
        else frontier.dead(reason=arguments.reason, slot=arguments.slot)
    )
    return sum(not letter.has_request for letter in letters)


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


def _list(arguments: Namespace, frontier: Frontier) -> int:
    limit = arguments.limit
    if limit is None and not arguments.json:
        limit = SHOWN
    letters = frontier.dead(reason=arguments.reason, slot=arguments.slot)
    shown = itertools.islice(letters, limit or None)
    if arguments.json:
        for letter in shown:
            print(json.dumps(as_json(letter)))
        return 0
    out = console()
    first = next(shown, None)
    if first is None:
        print(f"{clean(frontier.name)}: no dead letters")
        return 0
    write_lines(
        out, (line for letter in itertools.chain([first], shown) for line in _lines(letter))
    )
    if next(letters, None) is not None:
        out.print(Text("There are more: --limit 0 shows all.", style="dim"))
    return 0


def _lines(letter: DeadLetter) -> list[Text]:
    """Below each other and as long as they are: URLs are made to be copied."""
    head = Text.assemble((clean(letter.id), "bold"), "  ", (clean(letter.reason), "red"))
    if letter.at:
        head.append(f"  {ago(utc(letter.at))} ago")
    if letter.deliveries:
        head.append(f", {letter.deliveries} workers died with it")
    lines = [head, Text(f"  {clean(summary(letter))}")]
    if first := letter.detail.strip().partition("\n")[0]:
        lines.append(Text(f"  {clean(first)[:300]}", style="dim"))
    return lines


_ACTIONS: dict[str, Callable[[Namespace, Frontier], int]] = {
    "export": export,
    "list": _list,
    "purge": _change,
    "requeue": _change,
    "show": _show,
}
