"""``scrapy redisq status``: once or every second, as a table, plain lines or JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from scrapy_redisq.commands import display
from scrapy_redisq.commands.options import add_command, add_frontier, add_json, add_watch
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.watching import show
from scrapy_redisq.control import Frontier
from scrapy_redisq.control.figures import figures
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.control.stored import frontier_names
from scrapy_redisq.control.why import explain
from scrapy_redisq.errors import FrontierError
from scrapy_redisq.frontier.passing_errors import TROUBLE
from scrapy_redisq.server.cluster import Cluster
from scrapy_redisq.server.connection import Client, Server
from scrapy_redisq.settings.settings import check_frontier_name

RELIST = 10
"""Looks after which ``--watch`` searches for new frontiers again."""

TEXT = """\
Show where a crawl stands and who works on it. Without NAME: all frontiers of the server, one line
each; if there is only one, all of it.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    help = "where a crawl stands, and who works on it"
    status = add_command(commands, "status", run, help=help, text=TEXT)
    add_frontier(status, "the frontier; default: all")
    add_watch(status)
    add_json(status, "one JSON object for each frontier, each on one line")


def run(arguments: Namespace, project: Project) -> int:
    """Show the status; with ``--watch`` until Ctrl-C, which is how that is meant to end."""
    if project.nothing_there():  # a look starts no embedded server
        return _nothing(arguments, project)
    with project.server() as server, contextlib.closing(server.client()) as client:
        watched = Watched(server, client, arguments.name)
        return show(
            arguments,
            watched.picture,
            lambda: _print(map(json.dumps, watched.look())),
            lambda: _print(map(display.line, watched.look())),
        )


def _nothing(arguments: Namespace, project: Project) -> int:
    if arguments.name is None:
        if not arguments.json:
            print(f"No frontier: no embedded server has run in {project.embedded_folder}")
        return 0
    nothing = absent(check_frontier_name(arguments.name))
    nothing = {**nothing, "why": explain(nothing), **figures(nothing, [])}
    if arguments.json:
        print(json.dumps(nothing))
    else:
        where = f": no embedded server has run in {project.embedded_folder}"
        display.console().print(display.full(nothing, where))
    return 0


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


class Watched:
    """The frontiers that are looked at: one by name, or all that are there."""

    def __init__(self, server: Server, client: Client, name: str | None) -> None:
        self._server, self._client, self._name = server, client, name
        self._frontiers = [] if name is None else [self._open(name)]
        self._looks = 0

    def _open(self, name: str) -> Frontier:
        return Frontier(self._server, name, client=self._client)

    def look(self) -> list[dict[str, Any]]:
        """All that people are shown of each. One that cannot be read does not hide others."""
        if self._name is None and (self._looks % RELIST == 0 or not self._frontiers):
            names, not_all = frontier_names(self._client)
            self._frontiers = list(map(self._open, names))
            if not_all:
                _warn(f"not all frontiers are shown, name one: {not_all}")
        self._looks += 1
        found: list[dict[str, Any]] = []
        problems: dict[str, Exception] = {}
        for frontier in self._frontiers:
            try:
                status = frontier.look()
            except (FrontierError, *TROUBLE) as error:
                if isinstance(error, TROUBLE) and not isinstance(self._client, Cluster):
                    raise
                problems[frontier.name] = error
                continue
            # One that was reset since the search is left out.
            if self._name is not None or status["state"] != "absent":
                found.append(status)
        for name, problem in problems.items():
            if not found:
                raise problem
            _warn(f"{name}: {problem}")
        return found

    def picture(self) -> RenderableType:
        """All of one, one line each of several."""
        found = self.look()
        if not found:
            return Text(f"No frontier on {self._server.address}")
        if len(found) > 1:
            return display.overview(found)
        return display.full(found[0], f" on {self._server.address}")


def _warn(text: str) -> None:
    print(f"scrapy redisq: {display.one_line(text)}", file=sys.stderr)
