"""What ``scrapy redisq autoscale`` shows: the crawl, its processes, and what was done."""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from scrapy_redisq.commands import display
from scrapy_redisq.commands.status import Rates
from scrapy_redisq.control.words import size_text, time_text
from scrapy_redisq.ops.autoscale import Supervisor

LINE_EVERY = 30.0
"""Seconds between two lines on the crawl, where there is no terminal."""

SHOWN = 5
"""Lines of what was done that a terminal shows."""


class FleetDisplay:
    """A picture that is drawn anew on a terminal, while ``live`` is entered; else lines now and
    then."""

    def __init__(self) -> None:
        console = display.console()
        can_refresh = display.can_refresh(console)
        self.live = Live(console=console, auto_refresh=False) if can_refresh else None
        self._said: deque[str] = deque(maxlen=SHOWN)
        self._rates = Rates()
        self._current: dict[str, float | None] = {}
        self._rated: object = None
        self._printed = -LINE_EVERY

    def say(self, text: str) -> None:
        """Something was done."""
        line = f"{datetime.now():%H:%M:%S}  {text}"
        if self.live:
            self._said.append(line)
        else:
            self.print(line)

    @staticmethod
    def print(line: str) -> None:
        """A line by itself."""
        try:
            print(display.clean(line), flush=True)
        except OSError:  # nobody reads it any more, which is no reason to leave workers alone
            display.write_nothing_more()

    def show(self, supervisor: Supervisor) -> None:
        """What it has found and done."""
        status = supervisor.status
        if status is not None and status is not self._rated:
            self._rated = status
            self._current = self._rates.add(status, time.monotonic())
        if self.live is not None:
            try:
                self.live.update(self._picture(supervisor), refresh=True)
            except OSError:  # the terminal is gone
                display.write_nothing_more()
        elif time.monotonic() - self._printed >= LINE_EVERY and status:
            self._printed = time.monotonic()
            self.print(display.line(status, self._current.get("")))
            if supervisor.away:
                self.say(display.one_line(supervisor.away))

    def _picture(self, supervisor: Supervisor) -> RenderableType:
        parts: list[RenderableType] = []
        if supervisor.status is not None:
            parts.append(display.full(supervisor.status, self._current))
        parts += [Text(""), _line(supervisor)]
        if supervisor.fleet.processes:
            parts.append(_processes(supervisor))
        parts += [Text(display.clean(line), style="dim") for line in self._said]
        if supervisor.away:
            parts.append(Text(display.one_line(supervisor.away), style="bold red"))
        return Group(*parts)


def _line(supervisor: Supervisor) -> Text:
    fleet, load = supervisor.fleet, supervisor.load
    text = f"{len(fleet.running)} of {fleet.bounds.least} to {fleet.bounds.most} workers"
    if supervisor.because:
        text += f", {supervisor.wanted} wanted: {supervisor.because}"
    told = []
    if load.cpu is not None:
        told.append(f"CPU {load.cpu:.0%}")
    if load.free is not None:
        told.append(f"{size_text(load.free)} of memory free")
    told += filter(None, [fleet.held_back])
    if fleet.stops:
        told.append("stopping" if fleet.stops == 1 else "stopping at once")
    return Text.assemble(("autoscale ", "dim"), f"{text}; {', '.join(told)}" if told else text)


def _processes(supervisor: Supervisor) -> RenderableType:
    rows = [
        (
            f"worker {process.number}",
            str(process.pid),
            time_text(process.age),
            size_text(process.rss),
            Text("stopping", style="yellow") if process.stopping else "",
        )
        for process in supervisor.fleet.processes
    ]
    return display.table(("process", "pid", "up", "memory", ""), rows)
