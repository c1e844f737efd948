"""``scrapy redisq status``: once or every second, as a table, plain lines or JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from scrapy_redisq.commands import display
from scrapy_redisq.commands.options import add_command, add_json, add_watch
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.watching import REFRESH, show
from scrapy_redisq.control import Frontier
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.control.names import frontier_names
from scrapy_redisq.control.why import explain
from scrapy_redisq.errors import FrontierError, ServerBusy
from scrapy_redisq.frontier.trouble import TROUBLE
from scrapy_redisq.server.cluster import Cluster
from scrapy_redisq.server.connection import Server
from scrapy_redisq.settings.settings import check_frontier_name

RELIST = 10
"""Looks after which ``--watch`` searches for new frontiers again."""

RATE_WINDOW = 5.0
"""Seconds over which pages per second are averaged."""

TEXT = """\
Show where a crawl stands and who works on it. Without NAME: all frontiers of the server, one line
each; if there is only one, all of it.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    status = add_command(
        commands,
        "status",
        help="where a crawl stands, and who works on it",
        text=TEXT,
    )
    status.add_argument("name", metavar="NAME", nargs="?", help="the frontier; default: all")
    add_watch(status, "every second, with rates")
    add_json(status, "one JSON object for each frontier, each on one line")


def run(arguments: Namespace, project: Project) -> int:
    """Show the status; with ``--watch`` until Ctrl-C, which is how that is meant to end."""
    if project.nothing_there() and not arguments.watch:
        return _nothing(arguments, project)
    with contextlib.suppress(*[KeyboardInterrupt] * arguments.watch):
        if project.nothing_there():
            print(f"no embedded server has run in {project.embedded_folder} yet", file=sys.stderr)
        while project.nothing_there():  # a look starts none
            time.sleep(REFRESH)
        with (
            project.server() as server,
            contextlib.closing(Watched(project, server, arguments.name)) as watched,
        ):
            return show(
                arguments,
                lambda: watched.renderable(watched.look()),
                lambda: _print_json(watched.look()),
                lambda: _print_lines(watched),
            )
    return 0


def _nothing(arguments: Namespace, project: Project) -> int:
    if arguments.name is None:
        if not arguments.json:
            print(f"No frontier: no embedded server has run in {project.embedded_folder}")
        return 0
    nothing = absent(check_frontier_name(arguments.name))
    nothing["why"] = explain(nothing)
    return show(arguments, lambda: display.full(nothing, {}), lambda: _print_json([nothing]))


def _print_json(statuses: Iterable[Mapping[str, Any]]) -> None:
    for status in statuses:
        print(json.dumps(status), flush=True)


def _print_lines(watched: Watched) -> None:
    for status in watched.look():
        print(display.line(status, watched.rates(status)[""]), flush=True)


class Rates:
    """Pages per second of one frontier and of each of its workers, over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, str, dict[str, int]]] = deque()

    def add(self, status: Mapping[str, Any], now: float) -> dict[str, float | None]:
        """Take in one look, at ``now`` seconds; -> the rate by worker's id, of all under ""."""
        pages = {worker["id"]: worker["pages"] for worker in status["workers"]}
        pages[""] = status["finished"]
        run = str(status["run"])
        if self._samples and self._samples[-1][1] != run:
            self._samples.clear()
        while len(self._samples) > 1 and now - self._samples[0][0] > RATE_WINDOW:
            self._samples.popleft()
        self._samples.append((now, run, pages))
        return {name: self._rate(name) for name in pages}

    def _rate(self, name: str) -> float | None:
        known = [(at, pages[name]) for at, _, pages in self._samples if name in pages]
        (first_at, first), (last_at, last) = known[0], known[-1]
        if last_at <= first_at:
            return None
        # Requeued dead letters are no longer finished; nobody un-fetches a page.
        return max(0, last - first) / (last_at - first_at)


class Watched:
    """The frontiers that are looked at: one by name, or all that are there."""

    def __init__(self, project: Project, server: Server, name: str | None) -> None:
        self.address = server.address
        self._project = project
        self._server = server
        self._name = name
        self._names = [] if name is None else [name]
        self._looks = 0
        self._client = server.client()
        self._frontiers: dict[str, Frontier] = {}
        self._rates: dict[str, Rates] = {}
        self._current: dict[str, dict[str, float | None]] = {}

    def close(self) -> None:
        self._client.close()
        for frontier in self._frontiers.values():
            frontier.close()

    def look(self) -> list[dict[str, Any]]:
        """The status of each frontier. One that cannot be read does not hide the others."""
        if self._name is None and (self._looks % RELIST == 0 or not self._names):
            self._names, not_all = frontier_names(self._client)
            if not_all:
                text = f"scrapy redisq: not all frontiers are shown, name one: {not_all}"
                print(display.one_line(text), file=sys.stderr)
        self._looks += 1
        statuses = []
        problems: dict[str, Exception] = {}
        for name in self._names:
            if name not in self._frontiers:
                self._frontiers[name] = self._project.frontier(self._server, name)
                self._rates[name] = Rates()
            try:
                status = self._status(self._frontiers[name])
            except (FrontierError, *TROUBLE) as error:
                away = isinstance(error, TROUBLE)
                if away and not isinstance(self._client, Cluster):
                    raise
                problems[name] = error
                continue
            if self._name is None and status["state"] == "absent":
                continue  # it was reset since the search
            self._current[name] = self._rates[name].add(status, time.monotonic())
            statuses.append(status)
        for name, problem in problems.items():
            if not statuses:
                raise problem
            print(f"scrapy redisq: {name}: {display.one_line(str(problem))}", file=sys.stderr)
        return statuses

    def _status(self, frontier: Frontier) -> dict[str, Any]:
        """With why little or nothing happens. Raises what `Frontier.status` does, but says which
        shards are away if others are there."""
        try:
            status = frontier.status()
            return {**status, "why": frontier.why(status)}
        except TROUBLE:
            why = frontier.why()
            if why["reason"] == "shard_away":
                raise ServerBusy(why["text"]) from None
            raise

    def rates(self, status: Mapping[str, Any]) -> dict[str, float | None]:
        return self._current[status["frontier"]]

    def renderable(self, statuses: Sequence[Mapping[str, Any]]) -> RenderableType:
        """All of one, one line each of several."""
        if not statuses:
            return Text(f"No frontier on {self.address}")
        if len(statuses) == 1:
            return display.full(statuses[0], self.rates(statuses[0]))
        return display.overview(statuses, [self.rates(status)[""] for status in statuses])
