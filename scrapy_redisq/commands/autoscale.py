"""``scrapy redisq autoscale``: the workers of one machine, as many as have work."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scrapy.settings import Settings

from scrapy_redisq.commands import display
from scrapy_redisq.commands.fleet_display import FleetDisplay
from scrapy_redisq.commands.options import add_command, add_frontier, whole_number
from scrapy_redisq.commands.project import Project
from scrapy_redisq.errors import SettingError
from scrapy_redisq.ops.autoscale import Bounds, CrawlCommand, Fleet, Job, Supervisor
from scrapy_redisq.ops.autoscale.machine import processors
from scrapy_redisq.settings.arguments import Arguments
from scrapy_redisq.settings.scrapys_limits import downloads_at_once

TEXT = """\
Start and stop worker processes on this machine, between --min and --max, as many as have work: by
what is due and hosts' limits, and as far as CPU and memory allow. All are in one run (REDISQ_RUN;
without that setting the unfinished run's, or a new one). It ends with the run, and with the
workers' exit code.

A worker that crashes is replaced, after a pause that doubles up to a minute; when all end at once
it is given up. Ctrl-C and SIGTERM go on to the workers: they finish what they hold. The second time
at once. If autoscale itself is killed, its workers stop by themselves on Linux.
"""

EXAMPLES = """\
examples:
  scrapy redisq autoscale -- scrapy crawl books
  scrapy redisq autoscale --min 2 --max 8 books -- scrapy crawl books -a part=1

"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    autoscale = add_command(
        commands,
        "autoscale",
        run,
        help="start and stop workers on this machine, as many as have work",
        text=TEXT,
        examples=EXAMPLES,
        check=_check,
        usage="%(prog)s [--min N] [--max N] [NAME] -- scrapy crawl SPIDER",
    )
    add_frontier(autoscale, "the frontier; default: the command's spider's")
    for option, metavar, default, text in (
        ("--min", "N", 1, "workers at least (default: 1)"),
        ("--max", "N", None, "workers at most (default: the number of CPUs)"),
        (
            *("--max-cpu", "PERCENT", 90),
            "start no more than --min while the CPUs are that busy; 0: never mind (default: 90)",
        ),
        (
            *("--patience", "SECONDS", 30),
            "stop a worker when there has been one too many for so long (default: 30)",
        ),
        (
            *("--grace", "SECONDS", 0),
            "kill a worker that has not left so long after it was told to, or stop one that stays "
            "when the run is complete; 0: wait for it (default: 0)",
        ),
    ):
        autoscale.add_argument(
            option, metavar=metavar, type=whole_number, default=default, help=text
        )
    autoscale.add_argument(
        "--logs",
        metavar="FOLDER",
        help="write what workers say to files there (default: on a terminal below "
        ".scrapy/autoscale, else where this writes)",
    )


def _check(arguments: Namespace) -> None:
    if not getattr(arguments, "worker", None):
        arguments.error("behind -- it takes the workers' command, such as: -- scrapy crawl books")
    if arguments.max is not None and arguments.max < max(1, arguments.min):
        arguments.error(f"--max {arguments.max} is less than --min {arguments.min}, or 0")


def run(arguments: Namespace, project: Project) -> int:
    """Until the run is complete, or a signal; -> the workers' verdict.

    0: the run is complete, or the workers ended well when they were told to. Else the exit code of
    a worker that did not, 128 + signal if a signal ended it.
    """
    command = CrawlCommand(arguments.worker)
    project, name = _project_of(command, arguments, project)
    with project.server(to_write=True) as server, project.frontier(server, name) as frontier:
        status = frontier.status()
        run_name, words = _run_of(project, command, status)
        if run_name and status["run_name"] == run_name and status["state"] == "complete":
            print(f"{display.clean(name)}: the run {display.clean(run_name)} is complete already")
            return 0
        shown = FleetDisplay()
        logs = _log_folder(arguments, project, shown.live is not None)
        at_once, bounds = downloads_at_once(project.scrapys), _bounds(arguments)
        job = Job(words, run_name, at_once, logs, bounds)
        supervisor = Supervisor(frontier, job, shown.say, shown.show)
        try:
            with _signals(supervisor.fleet), shown.live or contextlib.nullcontext():
                return supervisor.run()
        finally:
            if logs:
                shown.print(f"The workers' logs are in {logs}")


def _bounds(arguments: Namespace) -> Bounds:
    return Bounds(
        least=arguments.min,
        most=arguments.max if arguments.max is not None else max(processors(), arguments.min),
        most_cpu=arguments.max_cpu / 100,
        grace=arguments.grace or math.inf,
        patience=arguments.patience,
    )


def _project_of(
    command: CrawlCommand, arguments: Namespace, project: Project
) -> tuple[Project, str]:
    """The project as the workers see it, with the settings of their command; and the frontier."""
    given: Settings = project.given.copy()
    given.update(command.settings, priority="cmdline")
    name = arguments.name
    if name is None:
        if not command.spider or command.spider.endswith(".py"):
            raise SettingError("NAME", None, "the frontier's name: the command names no spider")
        of_spider = Project(given, spider_name=command.spider)
        name = of_spider.settings.frontier_name(command.spider, Arguments.of(command.arguments))
    return Project(given, name), name


def _run_of(
    project: Project, command: CrawlCommand, status: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """The name of the run that workers are started for, and their command: what settings say, the
    run's that is unfinished, or a new one."""
    if project.settings.run:
        return project.settings.run_name(command.spider or project.spider_name), [*command.words]
    if not command.spider:
        text = "no scrapy crawl is seen in the command: give its workers one REDISQ_RUN yourself"
        print(f"scrapy redisq: {text}", file=sys.stderr)
        return "", [*command.words]
    name = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S}-{os.getpid()}"
    if status["run_name"] and status["state"] != "complete" and project.settings.resume:
        name = str(status["run_name"])
    return name, command.in_run(name)


@contextlib.contextmanager
def _signals(fleet: Fleet) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP go on to the workers, whatever this process waits for.
    SIGHUP once, and not if it is ignored (nohup)."""
    hangup = getattr(signal, "SIGHUP", None)

    def heard(number: int, _frame: object) -> None:
        # The shell sends it as well as the kernel, maybe before anything of this has run.
        if number != hangup or signal.signal(number, signal.SIG_IGN) != signal.SIG_IGN:
            fleet.stop()

    handlers = {}
    for number in filter(None, (signal.SIGINT, signal.SIGTERM, hangup)):
        if number != hangup or signal.getsignal(number) != signal.SIG_IGN:
            handlers[number] = signal.signal(number, heard)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _log_folder(arguments: Namespace, project: Project, live: bool) -> Path | None:
    """Where workers write to; None: to where this process does, which is no terminal."""
    if arguments.logs is not None:
        folder = Path(arguments.logs)
    elif live:
        base = project.folder or Path.cwd()
        folder = base / ".scrapy" / "autoscale" / f"{datetime.now():%Y-%m-%dT%H%M%S}"
    else:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder
