"""``scrapy redisq status``: once or every second, as a table, plain lines or JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from scrapy_redisq.commands import display
from scrapy_redisq.commands.options import add_command, add_frontier, add_json, add_watch
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.watching import REFRESH, show
from scrapy_redisq.control import Frontier
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.control.stored import frontier_names
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
    help = "where a crawl stands, and who works on it"
    status = add_command(commands, "status", run, help=help, text=TEXT)
    add_frontier(status, "the frontier; default: all")
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
                watched.picture,
                lambda: _print_json(status for status, _ in watched.look()),
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
    for status, rates in watched.look():
        print(display.line(status, rates[""]), flush=True)


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
        self._project = project
        self._server = server
        self._name = name
        self._names = [] if name is None else [name]
        self._looks = 0
        self._client = server.client()
        self._known: dict[str, tuple[Frontier, Rates]] = {}

    def close(self) -> None:
        self._client.close()
        for frontier, _ in self._known.values():
            frontier.close()

    def look(self) -> list[tuple[Mapping[str, Any], dict[str, float | None]]]:
        """The status of each frontier, and rates. One that cannot be read does not hide others."""
        if self._name is None and (self._looks % RELIST == 0 or not self._names):
            self._names, not_all = frontier_names(self._client)
            if not_all:
                _warn(f"not all frontiers are shown, name one: {not_all}")
        self._looks += 1
        found: list[tuple[Mapping[str, Any], dict[str, float | None]]] = []
        problems: dict[str, Exception] = {}
        for name in self._names:
            if name not in self._known:
                self._known[name] = self._project.frontier(self._server, name), Rates()
            frontier, rates = self._known[name]
            try:
                status = _status(frontier)
            except (FrontierError, *TROUBLE) as error:
                if isinstance(error, TROUBLE) and not isinstance(self._client, Cluster):
                    raise
                problems[name] = error
                continue
            # One that was reset since the search is left out.
            if self._name is not None or status["state"] != "absent":
                found.append((status, rates.add(status, time.monotonic())))
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
        if len(found) == 1:
            return display.full(*found[0])
        return display.overview([status for status, _ in found], [rates[""] for _, rates in found])


def _status(frontier: Frontier) -> dict[str, Any]:
    """With why little or nothing happens. Raises what `Frontier.status` does, but says which shards
    are away if others are there."""
    try:
        status = frontier.status()
        return {**status, "why": frontier.why(status)}
    except TROUBLE:
        why = frontier.why()
        if why["reason"] == "shard_away":
            raise ServerBusy(why["text"]) from None
        raise


def _warn(text: str) -> None:
    print(f"scrapy redisq: {display.one_line(text)}", file=sys.stderr)
