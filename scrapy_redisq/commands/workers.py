"""``scrapy redisq workers``: who works on a frontier, and how; having them be quiet, or stop."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from scrapy_redisq.commands.display import clean, worker_table
from scrapy_redisq.commands.options import add_command, add_frontier, add_json, add_watch
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.watching import show
from scrapy_redisq.control.words import counted

_DONE = {
    "quiet": "told to be quiet: nothing more is claimed and what is held is finished, until they "
    "are told to work",
    "work": "told to work",
    "stop": "told to stop, as by SIGTERM",
}

TEXT = """\
Show the workers of a frontier: what code they run, hold and have done, and what they cost.

Without NAME: the only frontier of the server. If a frontier has the name of an action, write it
after --.

Actions, each with its own help (scrapy redisq workers quiet -h), take effect within a second. A
worker that joins later gets no earlier order.
"""

ACTIONS = {
    "quiet": """\
Have workers claim nothing more and finish what they hold, until they are told to work or to stop.
They stay in the crawl; with all of them quiet it stands still.
""",
    "work": """\
Let quiet workers claim requests again.
""",
    "stop": """\
Stop workers, as SIGTERM does. Whoever has started them may start them again.
""",
}

_WORKER = re.compile(r".+-[0-9]+-[0-9a-f]{8}|.+:[0-9]+")
"""The name of a worker: its id, or its host and pid as tables have them."""


def add_options(commands: Any) -> None:
    """The sub command, its actions, and their options."""
    workers = add_command(
        commands,
        "workers",
        run,
        help="who works on a crawl; tell them to be quiet, or to stop",
        text=TEXT,
        usage="%(prog)s [NAME] [--watch] [--json]\n"
        "       %(prog)s {quiet,work,stop} [NAME] WORKER … | --all",
    )
    add_frontier(workers)
    add_watch(workers)
    add_json(workers, "one JSON object for each")
    for action, text in ACTIONS.items():
        usage = "%(prog)s [NAME] WORKER … | --all"
        name = f"workers {action}"
        parser = add_command(commands, name, tell, text=text, usage=usage, check=_name_workers)
        parser.add_argument(
            "words",
            metavar="WORKER",
            nargs="*",
            help="HOST:PID, or an id; before them the frontier, if there are several",
        )
        parser.add_argument("--all", action="store_true", help="all workers of the frontier")


# Steering


def _name_workers(arguments: Namespace) -> None:
    """``words`` are the frontier, which may be left out, and workers."""
    words: list[str] = arguments.words
    has_name = bool(words) and (arguments.all or not _WORKER.fullmatch(words[0]))
    arguments.name, arguments.ids = (words[0], words[1:]) if has_name else (None, words)
    if bool(arguments.ids) == arguments.all:
        arguments.error("either --all, or workers as 'scrapy redisq workers' shows them")


def tell(arguments: Namespace, project: Project) -> int:
    """Tell them; 1 if one that was named is not there. Raises `FrontierError` without a frontier,
    or several to choose."""
    what = arguments.command.partition(" ")[2]
    with project.chosen_frontier(arguments.name) as frontier:
        name, chosen, missing = clean(frontier.name), None, []
        if not arguments.all:
            names = {one["id"]: f"{one['host']}:{one['pid']}" for one in frontier.workers()}
            chosen = [id for id in names if {id, names[id]} & {*arguments.ids}]
            missing = [one for one in arguments.ids if one not in {*names, *names.values()}]
        told = frontier.tell(what, chosen)
    for one in missing:
        print(f"{name} has no worker {clean(one)}", file=sys.stderr)
    were = "was" if told == 1 else "were"
    print(f"{name}: {counted(told, 'worker')} {were} {_DONE[what]}")
    return 1 if missing else 0


# Listing


def run(arguments: Namespace, project: Project) -> int:
    """List workers. Raises `FrontierError` without a frontier, or several to choose."""
    with project.chosen_frontier(arguments.name) as frontier:

        def picture() -> RenderableType:
            workers = frontier.workers()
            if not workers:
                return Text(f"{clean(frontier.name)}: no worker is there", style="yellow")
            return worker_table(workers)

        def print_json() -> None:
            for worker in frontier.workers():
                print(json.dumps({"frontier": frontier.name, **worker}))

        return show(arguments, picture, print_json)
