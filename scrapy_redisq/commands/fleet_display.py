"""The display of ``scrapy redisq autoscale``: the crawl, and changes to the fleet."""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from scrapy_redisq.commands import display
from scrapy_redisq.control.words import size_text
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
        """The supervisor's findings and changes."""
        if self.live is not None:
            try:
                self.live.update(self._picture(supervisor), refresh=True)
            except OSError:  # the terminal is gone
                display.write_nothing_more()
        elif time.monotonic() - self._printed >= LINE_EVERY and supervisor.status:
            self._printed = time.monotonic()
            self.print(display.line(supervisor.status))
            if supervisor.away:
                self.say(display.one_line(supervisor.away))

    def _picture(self, supervisor: Supervisor) -> RenderableType:
        parts: list[RenderableType] = []
        if supervisor.status is not None:
            parts += [display.full(supervisor.status), Text("")]
        parts.append(_line(supervisor))
        parts += [Text(display.clean(line), style="dim") for line in self._said]
        if supervisor.away:
            parts.append(Text(display.one_line(supervisor.away), style="bold red"))
        return Group(*parts)


def _line(supervisor: Supervisor) -> Text:
    fleet, load = supervisor.fleet, supervisor.load
    text = f"{len(fleet.running)} of {fleet.bounds.least} to {fleet.bounds.most} workers"
    if stopping := len(fleet.processes) - len(fleet.running):
        text += f", {stopping} stopping"
    if supervisor.because:
        text += f", {supervisor.wanted} wanted: {supervisor.because}"
    told = [] if load.cpu is None else [f"CPU {load.cpu:.0%}"]
    if load.free is not None:
        told.append(f"{size_text(load.free)} of memory free")
    told += filter(None, [fleet.held_back])
    return Text.assemble(("autoscale ", "dim"), "; ".join([text, *told]))
