"""``scrapy redisq workers``: who works on a frontier, and how; having them be quiet, or stop."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from scrapy_redisq.commands.display import ago, clean, duration
from scrapy_redisq.commands.options import (
    GLOBAL_OPTIONS,
    add_command,
    add_frontier,
    add_json,
    add_watch,
)
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.table import Cell, Column, Table
from scrapy_redisq.commands.watching import show
from scrapy_redisq.control import Frontier
from scrapy_redisq.control.words import counted, size_text

_DONE = {
    "quiet": "told to be quiet: nothing more is claimed and what is held is finished, until they "
    "are told to work",
    "work": "told to work",
    "stop": "told to stop, as by SIGTERM",
}

TEXT = """\
Show the workers of a frontier: what code they run, what they hold and have done, what their
processes cost (those that share a process have one HOST:PID), and whether they are quiet.

Without NAME: the only frontier of the server. One that is called like an action is given after --.

Actions, each with its own help (scrapy redisq workers quiet -h):
  quiet    claim nothing more, and finish what is held
  work     claim again
  stop     leave, as by SIGTERM
They take effect within a second. Who joins later is not told.
"""

ACTION_TEXTS = {
    "quiet": """\
Have workers claim nothing more and finish what they hold, until they are told to work or to stop.
They stay in the crawl; with all of them quiet it stands still.
""",
    "work": """\
Let quiet workers claim requests again.
""",
    "stop": """\
Stop workers, as SIGTERM does: they finish what is being downloaded, give back what they have not
begun, and leave. Whoever has started them may start them again.
""",
}

_WORKER = re.compile(r".+-[0-9]+-[0-9a-f]{8}|.+:[0-9]+")
"""What names a worker: its id, or its host and pid as tables have them."""


def add_options(commands: Any) -> None:
    """The sub command, its actions, and their options."""
    workers = add_command(
        commands,
        "workers",
        help="who works on a crawl; tell them to be quiet, or to stop",
        text=TEXT,
        usage="%(prog)s [NAME] [--watch] [--json]\n"
        "       %(prog)s {quiet,work,stop} [NAME] WORKER … | --all",
    )
    workers.set_defaults(action="list")
    add_frontier(workers)
    add_watch(workers)
    add_json(workers, "one JSON object for each")
    for action, text in ACTION_TEXTS.items():
        parser = commands.add_parser(
            f"workers {action}",
            description=text,
            epilog=GLOBAL_OPTIONS,
            usage="%(prog)s [NAME] WORKER … | --all",
        )
        parser.set_defaults(action=action, error=parser.error)
        parser.add_argument(
            "words",
            metavar="WORKER",
            nargs="*",
            help="HOST:PID, or an id; before them the frontier, if there are several",
        )
        parser.add_argument("--all", action="store_true", help="all workers of the frontier")


def name_workers(arguments: Namespace) -> None:
    """``words`` are the frontier, which may be left out, and workers."""
    words: list[str] = arguments.words
    has_name = bool(words) and (arguments.all or not _WORKER.fullmatch(words[0]))
    arguments.name, arguments.ids = (words[0], words[1:]) if has_name else (None, words)
    if bool(arguments.ids) == arguments.all:
        arguments.error("either --all, or workers as 'scrapy redisq workers' shows them")


def run(arguments: Namespace, project: Project) -> int:
    """List workers or steer them. Raises `FrontierError` without a frontier, or several to
    choose."""
    with project.chosen_frontier(arguments.name) as frontier:
        return (_list if arguments.action == "list" else _tell)(arguments, frontier)


# Steering


def _tell(arguments: Namespace, frontier: Frontier) -> int:
    if arguments.all:
        told = frontier.tell(arguments.action)
    else:
        known = frontier.workers()
        chosen: list[str] = []
        for given in arguments.ids:
            found = [
                worker["id"]
                for worker in known
                if given in {worker["id"], f"{worker['host']}:{worker['pid']}"}
            ]
            if not found:
                print(f"{clean(frontier.name)} has no worker {clean(given)}", file=sys.stderr)
            chosen += found
        told = frontier.tell(arguments.action, chosen) if chosen else 0
        if len(chosen) < len(arguments.ids):
            print(f"{clean(frontier.name)}: {_workers(told)} {_DONE[arguments.action]}")
            return 1
    print(f"{clean(frontier.name)}: {_workers(told)} {_DONE[arguments.action]}")
    return 0


def _workers(number: int) -> str:
    return f"{counted(number, 'worker')} {'was' if number == 1 else 'were'}"


# Listing


def _list(arguments: Namespace, frontier: Frontier) -> int:
    def print_json() -> None:
        for worker in frontier.workers():
            print(json.dumps({"frontier": frontier.name, **worker}))

    return show(arguments, lambda: _renderable(frontier), print_json)


def _renderable(frontier: Frontier) -> RenderableType:
    workers = frontier.workers()
    if not workers:
        return Text(f"{clean(frontier.name)}: no worker is there", style="yellow")
    return Group(worker_table(workers), _title(frontier.name, workers))


def _title(name: str, workers: Sequence[dict[str, Any]]) -> Text:
    alive = [worker for worker in workers if worker["alive"]]
    parts = [f"{len(alive):,} alive"]
    if dead := len(workers) - len(alive):
        parts.append(f"{dead:,} without a sign of life")
    if quiet := sum(bool(worker["quiet"]) for worker in alive):
        parts.append(f"{quiet:,} quiet")
    releases = {worker["release"] for worker in alive}
    if len(releases) > 1:
        parts.append(f"{len(releases)} releases")
    rate = sum(worker["pages_per_minute"] or 0 for worker in alive)
    parts.append(f"{rate:,.0f} pages a minute")
    return Text(f"{clean(name)}: {', '.join(parts)}", style="dim")


def worker_table(workers: Sequence[dict[str, Any]]) -> Table:
    """One line for each worker, by host and process."""
    names = ("leased", "pages", "items", "pages/min", "CPU", "memory", "up", "heard of")
    rows: list[list[Cell]] = [
        [
            f"{clean(worker['host'])}:{worker['pid']}",
            clean(worker["release"]),
            _state(worker),
            f"{worker['leased']:,}",
            f"{worker['pages']:,}",
            f"{worker['items']:,}",
            _known(worker["pages_per_minute"], lambda rate: f"{rate:,.1f}"),
            _known(worker["cpu_seconds"], duration),
            _known(worker["rss_bytes"], size_text),
            ago(worker["since"]),
            f"{duration(worker['seen_ago'])} ago",
        ]
        for worker in sorted(workers, key=lambda one: (one["host"], one["pid"], one["id"]))
    ]
    words = [Column("worker", folds=True, left=True)]
    words += [Column("release", left=True), Column("state", left=True)]
    return Table([*words, *map(Column, names)], rows)


def _state(worker: dict[str, Any]) -> Text:
    if not worker["alive"]:
        return Text("dead", style="bold red")
    if worker["told"] == "stop":
        return Text("stops", style="yellow")
    if worker["quiet"]:
        return Text("quiet", style="yellow")
    if worker["told"] == "quiet" and worker["quiet"] is None:
        return Text("told to be quiet", style="yellow")
    return Text("sink away", style="bold red") if worker["sink"] else Text("works")


def _known(value: Any, text: Any) -> str:
    return "" if value is None else str(text(value))
