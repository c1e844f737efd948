"""``scrapy redisq doctor``: what makes a crawl slow, lossy or rude."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import redis
from rich.console import Console, Group
from rich.constrain import Constrain
from rich.table import Column, Table
from rich.text import Text

from scrapy_redisq.commands.display import clean, console, one_line
from scrapy_redisq.commands.options import add_command, add_frontier, add_json
from scrapy_redisq.commands.project import Project, only_frontier
from scrapy_redisq.errors import FrontierError, ServerError
from scrapy_redisq.ops.doctor import Level, Line, Report
from scrapy_redisq.ops.doctor.examination import examine, unreachable
from scrapy_redisq.ops.doctor.project import examine as examine_settings
from scrapy_redisq.ops.doctor.report import note, warning
from scrapy_redisq.server.connection import Server
from scrapy_redisq.server.url import redact

STYLES = {
    Level.OK: "green",
    Level.NOTE: "cyan",
    Level.WARNING: "bold yellow",
    Level.PROBLEM: "bold red",
}
WIDEST = 100
"""Columns of the report: longer lines are hard to read."""
WORDS = 7
"""Columns of the levels' names."""

TEXT = """\
Look for what makes a crawl slow, lossy or rude: each Redis server (version, memory, persistence,
replicas, speed), its user's rights, a frontier (what it has lost, what it takes), and the project's
settings that fight each other. Each line says what was found, why it matters and what to set.
Nothing is changed.

Levels: ok, note (worth knowing), warning (slow, lossy or rude in some cases), problem (it is, or no
crawl works so). Exit code, for CI: 1 from a warning on.
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    help = "what makes a crawl slow, lossy or rude: server, frontier, settings"
    doctor = add_command(commands, "doctor", run, help=help, text=TEXT)
    add_frontier(doctor)
    add_json(doctor)
    doctor.add_argument("--bad", action="store_true", help="only warnings and problems")


def run(arguments: Namespace, project: Project) -> int:
    """Look at everything; 1 if something is worse than a note."""
    report = Report(redact(project.settings.url), arguments.name)
    if project.nothing_there():
        text = f"no embedded server has run in {project.embedded_folder} yet"
        report.add("Server", [note(text, "The first crawl starts it.")])
    else:
        try:
            with project.server() as server:
                report.server = server.address
                report.frontier = arguments.name or _only_frontier(server, report)
                examine(report, server, project.settings, report.frontier)
        except (ServerError, redis.RedisError) as error:
            report.add("Server", [unreachable(redact(str(error)))])
    add_settings(report, project)
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        show(report, console(), only_bad=arguments.bad)
    return report.exit_code


def add_settings(report: Report, project: Project) -> None:
    """Add what is to be said of the project's settings."""
    if project.folder is None:
        lines = [note("there is no project (scrapy.cfg) here", "Its settings were not looked at.")]
    else:
        lines = list(examine_settings(project.scrapys, project.settings, project.spider))
    report.add("Settings", lines)


def _only_frontier(server: Server, report: Report) -> str | None:
    try:
        return only_frontier(server)
    except FrontierError as error:
        report.add("Server", [note(str(error), "None was looked at.", "a name, to look at one")])
    except redis.ResponseError:
        why = "Frontiers cannot be listed, and memory cannot be measured."
        report.add("Server", [warning("SCAN is denied", why, "ACL SETUSER … +scan")])
    return None


def show(report: Report, out: Console, *, only_bad: bool = False) -> None:
    """The report for people."""
    named = f", frontier {clean(report.frontier)}" if report.frontier else ""
    out.print(Text.assemble(("doctor ", "bold"), clean(report.server), named))
    for about, lines in report.parts():
        chosen = [line for line in lines if line.level >= Level.WARNING or not only_bad]
        if chosen:
            table = Table.grid(Column(min_width=WORDS), padding=(0, 0, 0, 2), pad_edge=True)
            for line in chosen:
                table.add_row(
                    Text(line.level.name.lower(), STYLES[line.level]),
                    Text("\n").join(_told(line)),
                )
            out.print(Group("", Text(about, style="bold"), Constrain(table, WIDEST)))
    counts = [
        Text(f"{n} {_plural(name, n)}", style=STYLES[Level[name.upper()]] if n else "dim")
        for name, n in report.counts().items()
    ]
    out.print(Group("", Text(", ").join(counts)))


def _plural(name: str, n: int) -> str:
    return name if n == 1 or name == "ok" else f"{name}s"


def _told(line: Line) -> Iterator[Text]:
    """The finding; below it why it matters and what to set."""
    yield Text(one_line(line.what), style="" if line.level <= Level.OK else "bold")
    if line.why:
        yield Text(one_line(line.why), style="dim")
    if line.set:
        yield Text.assemble(("→ ", "bold"), one_line(line.set))
