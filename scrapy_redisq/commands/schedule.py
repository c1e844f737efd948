"""``scrapy redisq schedule``: requests that come again, and their end."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from rich.text import Text

from scrapy_redisq.commands.display import clean, console, table
from scrapy_redisq.commands.options import add_command, add_json, add_name
from scrapy_redisq.commands.project import Project, check_known
from scrapy_redisq.control.words import counted, time_text
from scrapy_redisq.errors import FrontierError

TEXT = """\
Show the requests that come again (push --every, meta["redisq_every"]) and wait for their time. One
that is due, or with a worker, is listed again when it was fetched.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    help = "requests that come again; remove one of them"
    schedule = add_command(commands, "schedule", run, help=help, text=TEXT)
    add_name(schedule)
    schedule.add_argument("--remove", metavar="URL", help="let it come no more")
    add_json(schedule, "as a JSON object a line")


def run(arguments: Namespace, project: Project) -> int:
    """List them, or remove one; raises `FrontierError` if there is nothing to remove."""
    project.check_something_is_there()
    with (
        project.server(to_write=bool(arguments.remove)) as server,
        project.frontier_to_push(server, arguments.name) as frontier,
    ):
        check_known(frontier)
        name = clean(frontier.name)
        if arguments.remove:
            if not (removed := frontier.unschedule(arguments.remove)):
                raise FrontierError(
                    f"no request of {arguments.remove} waits to come again: "
                    f"'scrapy redisq schedule {name}' lists those that do"
                )
            print(f"{name}: {counted(removed, 'request')} removed")
            return 0
        waiting = frontier.schedule()
    if arguments.json:
        for one in waiting:
            print(json.dumps(one))
    elif not waiting:
        print(f"{name}: no request waits to come again")
    else:
        rows = [
            (Text(clean(one["url"])), time_text(one["every"]), time_text(one["due_in"]), one["due"])
            for one in waiting
        ]
        console().print(table(("URL", "every", "due in", "due"), rows))
    return 0
