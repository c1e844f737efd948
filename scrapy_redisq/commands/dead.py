"""``scrapy redisq dead``: look at requests that failed for good, try them again, delete them."""

from __future__ import annotations

import itertools
import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any

from rich.text import Text

from scrapy_redisq.commands.display import ago, clean, clean_lines, console
from scrapy_redisq.commands.export import export, purge_exported
from scrapy_redisq.commands.options import add_command, add_json, add_limit, add_name
from scrapy_redisq.commands.project import Project
from scrapy_redisq.control import DeadLetter, Frontier
from scrapy_redisq.control.dead_letters import place_of
from scrapy_redisq.control.words import counted, utc

SHOWN = 20
"""Dead letters listed for people if nobody says how many."""

Do = Callable[[Namespace, Frontier], int]


def add_options(commands: Any) -> None:
    """The sub command, its actions, and their options."""
    dead = add_command(
        commands,
        "dead",
        None,
        help="requests that failed for good: look at them, try them again, delete them",
    )
    actions = dead.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(action: str, do: Do, help: str, **options: Any) -> ArgumentParser:
        def run(arguments: Namespace, project: Project) -> int:
            with project.chosen_frontier(arguments.name) as frontier:
                return do(arguments, frontier)

        parser = add_command(actions, action, run, help=help, **options)
        add_name(parser)
        return parser

    listing = add("list", _list, "show dead letters, newest first")
    _add_filters(listing)
    add_limit(listing, SHOWN)
    add_json(listing, "one JSON object for each, with all of the request")
    show = add("show", _show, "show all that is known of one dead letter")
    show.add_argument("id", metavar="ID", type=_letter_id, help="such as 0-17")
    add_json(show)
    requeue = add(
        "requeue",
        _change,
        "put dead letters back to the front of the queue",
        text="Put dead letters back to the front of the queue, past the dupefilter, with\n"
        "deliveries and retries counted from zero.",
        check=_check_choice,
    )
    purge = add(
        "purge",
        _change,
        "delete dead letters",
        text="Delete dead letters. They remain counted.\n"
        "With --exported just those that a file of export holds, as far as they are still there\n"
        "and the same (digest): none that has come since.",
        check=_check_choice,
    )
    for parser in (requeue, purge):
        parser.add_argument("ids", metavar="ID", nargs="*", type=_letter_id, help="such as 0-17")
        parser.add_argument("--all", action="store_true", help="all dead letters")
        _add_filters(parser)
    purge.add_argument("--exported", metavar="FILE", help="only those that this export holds")
    exporting = add(
        "export",
        export,
        "write dead letters to a file",
        text="Write dead letters to a file, as JSON lines like those of list --json, each "
        "with\nits stored request (entry, base64). FILE is replaced as a whole. If there are no\n"
        "letters, the old file stays. Then: scrapy redisq dead purge NAME --exported FILE",
    )
    exporting.add_argument("file", metavar="FILE", help="is replaced if it is there; - for stdout")
    _add_filters(exporting)


def _add_filters(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="R", help="only those that died of this")
    parser.add_argument("--slot", metavar="S", help="only those of this slot (host)")


def _letter_id(text: str) -> str:
    try:
        place_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def _check_choice(arguments: Namespace) -> None:
    filters = arguments.reason is not None or arguments.slot is not None
    purge = arguments.action == "purge"
    exported = purge and arguments.exported is not None
    if sum([bool(arguments.ids), arguments.all, filters, exported]) != 1:
        choice = "either IDs, or --all, or --reason R and --slot S"
        arguments.error(f"{choice}, or --exported FILE" if purge else choice)


def _change(arguments: Namespace, frontier: Frontier) -> int:
    """Requeue or purge."""
    if arguments.action == "purge" and arguments.exported is not None:
        return purge_exported(arguments, frontier)
    ids = list(dict.fromkeys(arguments.ids)) or None
    change = frontier.requeue if arguments.action == "requeue" else frontier.purge
    changed = change(ids, reason=arguments.reason, slot=arguments.slot)
    print(f"{clean(frontier.name)}: {counted(changed, 'dead letter')} {arguments.action}d")
    left = 0
    if arguments.action == "requeue":
        chosen = frontier.dead(reason=arguments.reason, slot=arguments.slot)
        letters = frontier.dead_letters(ids) if ids else chosen
        left = sum(not letter.has_request for letter in letters)
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


def _show(arguments: Namespace, frontier: Frontier) -> int:
    letter = frontier.dead_letter(arguments.id)
    if letter is None:
        print(f"scrapy redisq: no such dead letter: {arguments.id}", file=sys.stderr)
        return 1
    told = letter.to_json()
    if arguments.json:
        print(json.dumps(told))
        return 0
    detail, request = told.pop("detail"), told.pop("request")
    width = max(map(len, told))
    for name, value in told.items():
        if value is not None:
            print(f"{name:<{width}}  {clean(str(value))}")
    if request is not None:
        print(clean_lines(json.dumps({"request": request}, indent=2, ensure_ascii=False)))
    print(clean_lines(detail))
    return 0


def _list(arguments: Namespace, frontier: Frontier) -> int:
    most = arguments.limit
    if most is None and not arguments.json:
        most = SHOWN
    letters = frontier.dead(reason=arguments.reason, slot=arguments.slot)
    out, letter = console(), None
    for letter in itertools.islice(letters, most or None):
        if arguments.json:
            print(json.dumps(letter.to_json()))
        else:
            # URLs are made to be copied: lines that are too long are the terminal's to fold.
            out.print(_text(letter), soft_wrap=True)
    if arguments.json:
        return 0
    if letter is None:
        print(f"{clean(frontier.name)}: no dead letters")
    elif next(letters, None) is not None:
        out.print(Text("There are more: --limit 0 shows all.", style="dim"))
    return 0


def _text(letter: DeadLetter) -> Text:
    head = Text.assemble((clean(letter.id), "bold"), "  ", (clean(letter.reason), "red"))
    if letter.at:
        head.append(f"  {ago(utc(letter.at))} ago")
    if letter.deliveries:
        head.append(f", {letter.deliveries} workers died with it")
    lines = [head, Text(f"  {clean(letter.summary())}")]
    if first := letter.detail.strip().partition("\n")[0]:
        lines.append(Text(f"  {clean(first)[:300]}", style="dim"))
    return Text("\n").join(lines)
