"""A line about the crawl, at the lower end of the terminal that the worker runs in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import IO

from rich.console import Console
from rich.errors import LiveError
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.text import Text

from scrapy_redisq.worker.worker import Worker

REFRESH = 0.5
"""Seconds between two lines."""


class Progress:
    """Shows how far the crawl is, below the log. Without a terminal nothing is shown, and a process
    has one line, that of its first crawl."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._output = sys.stderr
        self._console = Console(file=self._output, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: asyncio.Future[None] | None = None
        self._redirected: list[logging.StreamHandler[IO[str]]] = []

    def start(self) -> None:
        """Begin, if the output is a terminal."""
        if not self._console.is_terminal:
            return
        with contextlib.suppress(LiveError):  # there is one
            self._live.start()
            for handler in logging.root.handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is self._output:
                    handler.setStream(FileProxy(self._console, self._output))
                    self._redirected.append(handler)
            self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Take the line away."""
        if self._task is None:
            return
        self._task.cancel()
        self._task = None
        for handler in self._redirected:
            handler.setStream(self._output)
        with contextlib.suppress(OSError):  # the terminal is gone
            self._live.stop()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                self._live.update(self.line(), refresh=True)
            await asyncio.sleep(REFRESH)

    def line(self) -> Text:
        """Pages of this worker, and requests that are left for all workers."""
        worker, run = self._worker, self._worker.run_session
        doing = worker.reporter.doing()
        parts = [
            f"{worker.pages:,} pages ({worker.reporter.pages_per_minute() / 60:,.1f}/s)",
            f"{worker.items:,} items",
            f"{doing['downloading']} downloading",
            f"all workers: {run.finished():,} finished, {run.unfinished():,} to do",
        ]
        if run.away():
            parts.append("Redis is away")
        if doing["sink"]:
            parts.append(f"sink {doing['sink']}")
        if doing["quiet"]:
            parts.append("quiet")
        if worker.back_pressure.holds_back:
            parts.append("waits for room")
        text = f"{worker.spider.name}: {' · '.join(parts)}"
        return Text(text, no_wrap=True, overflow="ellipsis")
