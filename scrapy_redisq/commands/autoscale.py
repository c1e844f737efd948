"""``scrapy redisq autoscale``: the workers of one machine, as many as have work."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import redis
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text
from scrapy.settings import Settings

from scrapy_redisq.autoscale import CrawlCommand, Fleet, Load, Machine, Pace, Process
from scrapy_redisq.autoscale.machine import exists, processors
from scrapy_redisq.commands import display
from scrapy_redisq.commands.options import GLOBAL_OPTIONS, whole_number
from scrapy_redisq.commands.project import Project
from scrapy_redisq.commands.status import Rates, away, pause_after
from scrapy_redisq.commands.table import NAME_COLUMN, Cell, Column, Table
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierError, ServerError, SettingError

TICK = 0.2
"""Seconds between two looks at the processes."""

LINE_EVERY = 30.0
"""Seconds between two lines on the crawl, where there is no terminal."""

SHOWN = 5
"""Lines of what was done that a terminal shows."""

TEXT = """\
Start and stop worker processes on this machine, between --min and --max, as many as have work: by
what is due and hosts' limits, and as far as CPU and memory allow. It ends with the run, and with
the workers' exit code.

All workers are in one run (REDISQ_RUN; without that setting the unfinished run's, or a new one), so
that one that is started late, or again after a crash, never begins the crawl anew. One that crashes
is replaced, after a pause that doubles up to a minute; when all end at once it is given up.

Ctrl-C and SIGTERM go on to the workers: they finish what they hold. The second time at once. One
worker too many for a while is stopped like that, the newest first. If autoscale itself is killed,
its workers stop by themselves on Linux; elsewhere they go on.
"""

EXAMPLES = """\
examples:
  scrapy redisq autoscale -- scrapy crawl books
  scrapy redisq autoscale --min 2 --max 8 books -- uv run scrapy crawl books -a part=1
"""


def add_options(commands: Any) -> None:
    """The sub command and its options."""
    autoscale = commands.add_parser(
        "autoscale",
        help="start and stop workers on this machine, as many as have work",
        description=TEXT,
        epilog=EXAMPLES + "\n" + GLOBAL_OPTIONS,
        usage="%(prog)s [--min N] [--max N] [NAME] -- scrapy crawl SPIDER …",
    )
    autoscale.set_defaults(error=autoscale.error)
    autoscale.add_argument(
        "name", metavar="NAME", nargs="?", help="the frontier; default: the command's spider's"
    )
    autoscale.add_argument(
        "--min", metavar="N", type=whole_number, default=1, help="workers at least (default: 1)"
    )
    autoscale.add_argument(
        "--max",
        metavar="N",
        type=whole_number,
        help="workers at most (default: the number of CPUs)",
    )
    autoscale.add_argument(
        "--max-cpu",
        metavar="PERCENT",
        type=whole_number,
        default=90,
        help="start no more than --min while the CPUs are that busy; 0: never mind (default: 90)",
    )
    autoscale.add_argument(
        "--patience",
        metavar="SECONDS",
        type=whole_number,
        default=30,
        help="stop a worker when there has been one too many for so long (default: 30)",
    )
    autoscale.add_argument(
        "--grace",
        metavar="SECONDS",
        type=whole_number,
        default=0,
        help="kill a worker that has not left so long after it was told to, or stop one that stays "
        "when the run is complete; 0: wait for it (default: 0)",
    )
    autoscale.add_argument(
        "--logs",
        metavar="FOLDER",
        help="write what workers say to files there (default: on a terminal below "
        ".scrapy/autoscale, else where this writes)",
    )


def run(arguments: Namespace, project: Project) -> int:
    """Until the run is complete, or a signal; -> the workers' verdict.

    0: the run is complete, or the workers ended well when they were told to. Else the exit code of
    a worker that did not, 128 + signal if a signal ended it.
    """
    if not getattr(arguments, "worker", None):
        arguments.error("behind -- it takes the workers' command, such as: -- scrapy crawl books")
    if arguments.max is not None and arguments.max < max(1, arguments.min):
        arguments.error(f"--max {arguments.max} is less than --min {arguments.min}, or 0")
    command = CrawlCommand(arguments.worker)
    project, name = _project_of(command, arguments, project)
    with project.server(to_write=True) as server, project.frontier(server, name) as frontier:
        status = frontier.status()
        run_name, words = _run_of(project, command, status)
        if run_name and status["run_name"] == run_name and status["state"] == "complete":
            print(f"{display.clean(name)}: the run {display.clean(run_name)} is complete already")
            return 0
        scaler = _Autoscaler(arguments, project, frontier, words, run_name)
        with _signals(scaler):
            return scaler.run()


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
        name = Project(given).settings.frontier_name(command.spider)
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
def _signals(scaler: _Autoscaler) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP go on to the workers, whatever this process waits for.
    SIGHUP once, and not if it is ignored (nohup)."""
    hangup = getattr(signal, "SIGHUP", None)

    def heard(number: int, _frame: object) -> None:
        if number == hangup:  # the shell sends it as well as the kernel
            signal.signal(number, signal.SIG_IGN)
        scaler.stop()

    handlers = {}
    for number in filter(None, (signal.SIGINT, signal.SIGTERM, hangup)):
        if number != hangup or signal.getsignal(number) != signal.SIG_IGN:
            handlers[number] = signal.signal(number, heard)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Autoscaler:
    """Looks at the frontier, the machine and the processes, and shows them."""

    def __init__(
        self,
        arguments: Namespace,
        project: Project,
        frontier: Frontier,
        words: list[str],
        run_name: str,
    ) -> None:
        self._frontier = frontier
        self._run_name = run_name
        self._words = words
        self._concurrency = max(1, project.scrapys.getint("CONCURRENT_REQUESTS"))
        self._console = display.console()
        self._live = display.can_refresh(self._console)
        self._logs = _log_folder(arguments, project, self._live)
        self._said: deque[str] = deque(maxlen=SHOWN)
        most = arguments.max if arguments.max is not None else max(processors(), arguments.min)
        self._fleet = Fleet(
            self._start,
            self._say,
            least=arguments.min,
            most=most,
            most_cpu=arguments.max_cpu / 100,
            grace=arguments.grace or math.inf,
            pace=Pace(patience=arguments.patience),
        )
        self._rates = Rates()
        self._machine, self._load = Machine(), Load()
        self._status: dict[str, Any] | None = None
        self._current: dict[str, float | None] = {}
        self._wanted, self._because = 0, ""
        self._away = ""
        self._printed = -LINE_EVERY

    def stop(self) -> None:
        """A signal has come."""
        self._fleet.stop()

    def _start(self, number: int) -> Process:
        log = self._logs / f"worker-{number}.log" if self._logs else None
        return Process(number, self._command(), log)

    def _command(self) -> list[str]:
        """Of a run that has begun no worker makes another one, whatever REDISQ_RESUME says."""
        begun = self._run_name and self._status and self._status["run_name"] == self._run_name
        if begun and CrawlCommand(self._words).spider:
            return [*self._words, "-s", "REDISQ_RESUME=True"]
        return self._words

    def _say(self, text: str) -> None:
        line = f"{datetime.now():%H:%M:%S}  {text}"
        if self._live:
            self._said.append(line)
        else:
            self._print(line)

    @staticmethod
    def _print(line: str) -> None:
        try:
            print(display.clean(line), flush=True)
        except OSError:  # nobody reads it any more, which is no reason to leave workers alone
            display.write_nothing_more()

    def run(self) -> int:
        """Until there is nothing left to do."""
        try:
            if not self._live:
                return self._loop(None)
            with Live(console=self._console, auto_refresh=False) as live:
                return self._loop(live)
        except BaseException:
            if not self._fleet.stops:
                self._fleet.stop()
            raise
        finally:
            # Workers whose starter goes away are told once more to stop: that would be "at once".
            while self._fleet.processes:
                self._fleet.reap()
                time.sleep(TICK)
            if self._logs:
                self._print(f"The workers' logs are in {self._logs}")

    def _loop(self, live: Live | None) -> int:
        next_look, seen = 0.0, (0, 0)
        while True:
            self._fleet.reap()
            now, changes = time.monotonic(), (len(self._fleet.codes), self._fleet.stops)
            if now >= next_look or changes != seen:
                self._look()
                verdict = self._step()
                self._show(live)
                if verdict is not None:
                    return verdict
                next_look, seen = time.monotonic() + pause_after(now), changes
            time.sleep(TICK)

    def _look(self) -> None:
        self._load = self._machine.look()
        try:
            status = self._frontier.status()
            wanted = self._frontier.wanted_workers(
                least=self._fleet.least,
                concurrency=self._concurrency,
                status=status,
                run=self._begins(),
            )
        except (redis.RedisError, ServerError) as error:
            self._away = away(error)
            return
        except FrontierError as error:  # workers pass over a key that is in the way
            self._away = f"The crawl cannot be looked at, trying again: {error}"
            return
        self._away = ""
        self._status = status
        self._current = self._rates.add(status, time.monotonic())
        self._wanted, self._because = wanted.workers, wanted.because

    def _begins(self) -> str:
        """The name of the run that may have to be begun; any, where workers name it themselves."""
        return self._run_name or ("" if self._fleet.codes else "that the command names")

    def _step(self) -> int | None:
        """Start and stop workers; -> the exit code if it is over."""
        fleet = self._fleet
        finished = self._status["finished"] if self._status else None
        complete = self._is_complete()
        ending = self._is_ending()
        fleet.judge(over=complete or ending, finished=finished)
        if complete:
            fleet.see_off()
        if not fleet.processes:
            if complete:
                self._say(f"the run {self._run_name} is complete".replace("  ", " "))
                return 0
            if fleet.stops:
                return max(fleet.codes, default=0)
            if fleet.has_failed(finished):
                code = fleet.codes[-1]
                self._say(
                    f"given up: {fleet.failures} workers in turn ended at once, the last with exit "
                    f"code {code}, and no page was finished: see what they said"
                )
                return code or 1
        if not (fleet.stops or complete or self._away or (ending and 0 in fleet.codes)):
            fleet.scale(self._wanted_here(), self._load)
        return None

    def _is_ending(self) -> bool:
        """Everything is finished: the first workers may have left, before the last one says that
        the run is complete. If nobody is left to say so, start() was not read to its end."""
        status = self._status
        if status is None or self._away or status["state"] != "running":
            return False
        return bool(status["created"] <= status["finished"] and not status["posted"])

    def _is_complete(self) -> bool:
        """Whether the run is, for which workers are started here."""
        if self._status is None or self._away or self._status["state"] != "complete":
            return False
        if self._run_name:
            # Or one that has ended before, so that its workers have nothing to do.
            return self._status["run_name"] == self._run_name or 0 in self._fleet.codes
        return bool(self._fleet.codes)

    def _wanted_here(self) -> int:
        """The frontier's number without the workers that others have started."""
        assert self._status is not None
        alive = [worker for worker in self._status["workers"] if worker["alive"]]
        return self._wanted - sum(self._is_others(worker) for worker in alive)

    def _is_others(self, worker: Mapping[str, Any]) -> bool:
        """Neither started here, nor one of this machine that is gone: such a one counts as alive
        until its lease TTL has passed."""
        if worker["host"] != socket.gethostname():
            return True
        ours = any(process.has(worker["pid"]) for process in self._fleet.processes)
        return not ours and exists(worker["pid"])

    # What people see

    def _show(self, live: Live | None) -> None:
        if live is not None:
            try:
                live.update(self._picture(), refresh=True)
            except OSError:  # the terminal is gone
                display.write_nothing_more()
        elif time.monotonic() - self._printed >= LINE_EVERY and self._status:
            self._printed = time.monotonic()
            self._print(display.line(self._status, self._current.get("")))
            if self._away:
                self._say(self._away)

    def _picture(self) -> RenderableType:
        parts: list[RenderableType] = []
        if self._status is not None:
            parts.append(display.full(self._status, self._current))
        parts += [Text(""), self._line()]
        if self._fleet.processes:
            parts.append(self._processes())
        parts += [Text(display.clean(line), style="dim") for line in self._said]
        if self._away:
            parts.append(Text(self._away, style="bold red"))
        return Group(*parts)

    def _line(self) -> Text:
        fleet, load = self._fleet, self._load
        text = f"{len(fleet.running)} of {fleet.least} to {fleet.most} workers"
        if self._because:
            text += f", {self._wanted} wanted: {self._because}"
        told = []
        if load.cpu is not None:
            told.append(f"CPU {load.cpu:.0%}")
        if load.free is not None:
            told.append(f"{load.free / 2**30:,.1f} GiB of memory free")
        told += filter(None, [fleet.held_back])
        if fleet.stops:
            told.append("stopping" if fleet.stops == 1 else "stopping at once")
        return Text.assemble(("autoscale ", "dim"), f"{text}; {', '.join(told)}" if told else text)

    def _processes(self) -> Table:
        rows: list[list[Cell]] = [
            [
                f"worker {process.number}",
                str(process.pid),
                display.duration(process.age),
                f"{process.rss / 2**20:,.0f} MiB",
                Text("stopping", style="yellow") if process.stopping else "",
            ]
            for process in self._fleet.processes
        ]
        names = ("pid", "up", "memory", "")
        return Table([Column("process", NAME_COLUMN, left=True), *map(Column, names)], rows)


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
