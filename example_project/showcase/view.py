"""What the demo shows: a live display on a terminal, plain lines elsewhere, tables at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from showcase.observation import FrontierView, Result, SiteLog
from showcase.verdict import Check, Killed
from showcase.workers import Worker

_LINE_EVERY = 2.0  # seconds between lines where there is no terminal
_STYLES = {"killed": "red", "finished": "green", "crawling": "cyan"}


class View:
    """Shows a crawl of ``total`` pages while it runs, as a context manager."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._began = time.monotonic()
        self._last_line = 0.0
        self._live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def event(self, text: str) -> None:
        """A line that stays."""
        self._console.print(
            f"[dim]{self.elapsed:5.1f} s[/]  {text}", highlight=False, soft_wrap=True
        )

    def update(
        self,
        workers: Sequence[Worker],
        site: SiteLog,
        frontier: FrontierView,
        result: Result,
    ) -> None:
        """Show how far the crawl is."""
        rows = f"{result.count('pages'):,} pages and {result.count('books'):,} books"
        numbers = (
            f"queued {frontier.queued:,}, leased {frontier.leased:,}, "
            f"duplicates {frontier.duplicates:,}, recovered {frontier.reclaimed:,}"
        )
        progress = f"{site.fetched:,} of {self._total:,} pages, {site.rate:,.0f} pages/s"
        if self._live:
            self._live.update(
                Group(
                    self._bar(site.fetched, progress),
                    Text(f"frontier: {numbers}"),
                    Text(f"database: {rows}"),
                    _workers(workers, site, frontier, result.pages_by_pid()),
                ),
                refresh=True,
            )
        elif self.elapsed - self._last_line >= _LINE_EVERY:
            self._last_line = self.elapsed
            shares = " ".join(f"{worker.number}:{site.pages[worker.pid]:,}" for worker in workers)
            self.event(f"{progress}, {numbers}, stored {rows}, by worker {shares}")

    def _bar(self, fetched: int, progress: str) -> RenderableType:
        row = Table.grid(padding=(0, 2))
        row.add_row(ProgressBar(self._total, fetched, width=36), progress, f"{self.elapsed:.0f} s")
        return row


def _state(worker: Worker, frontier: FrontierView) -> str:
    if worker.running:
        return "crawling" if worker.pid in frontier.leases else "starting"
    return worker.reason


def _workers(
    workers: Sequence[Worker], site: SiteLog, frontier: FrontierView, stored: Counter[int]
) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("worker")
    for column in ("pid", "fetched", "stored", "leased", "last seen"):
        table.add_column(column, justify="right")
    table.add_column("state", min_width=10)
    for worker in workers:
        state = _state(worker, frontier)
        seen_ago = frontier.seen_ago.get(worker.pid)
        table.add_row(
            str(worker.number),
            str(worker.pid),
            f"{site.pages[worker.pid]:,}",
            f"{stored[worker.pid]:,}",
            f"{frontier.leases.get(worker.pid, 0):,}",
            "" if seen_ago is None else f"{seen_ago:.1f} s ago",
            Text(state, _STYLES.get(state, "")),
        )
    return table


def final_workers(
    workers: Sequence[Worker], site: SiteLog, stored: Counter[int], killed: Killed | None
) -> Table:
    """Who did what: pages fetched by the site's log, and pages that it wrote to the database."""
    table = Table(title="Workers", title_justify="left", box=box.SIMPLE_HEAD, show_footer=True)
    pages = sum(site.pages[worker.pid] for worker in workers)
    table.add_column("worker", "all")
    table.add_column("pid", justify="right")
    table.add_column("pages fetched", f"{pages:,}", justify="right")
    table.add_column("pages stored", f"{stored.total():,}", justify="right")
    table.add_column("end")
    for worker in workers:
        end = worker.reason
        if killed and worker.pid == killed.pid:
            end = f"killed, held {killed.held:,}"
        table.add_row(
            str(worker.number),
            str(worker.pid),
            f"{site.pages[worker.pid]:,}",
            f"{stored[worker.pid]:,}",
            Text(end, _STYLES.get(worker.reason, "red")),
        )
    return table


def final_checks(checks: Sequence[Check], database: str) -> Table:
    """What was promised and what was found."""
    table = Table(title=f"Result in {database}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("expected")
    table.add_column("")
    for check in checks:
        mark = Text("WRONG", "bold red") if check.complaint else Text("ok", "green")
        table.add_row(check.name, check.found, check.expected, mark)
    return table
