"""What the demo shows: a live display on a terminal, plain lines elsewhere, tables at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

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
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
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
        if self._console.is_terminal:
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


def _table(title: str, columns: str, rows: Iterable[Sequence[str | Text]]) -> Table:
    """Columns are named by words; figures stand to the right."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns.split():
        is_figure = column not in {"worker", "state", "promise", "expected", "kept"}
        table.add_column(column, justify="right" if is_figure else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _workers(
    workers: Sequence[Worker], site: SiteLog, frontier: FrontierView, stored: Counter[int]
) -> Table:
    def row(worker: Worker) -> list[str | Text]:
        state = worker.reason
        if worker.running:
            state = "crawling" if worker.pid in frontier.leases else "starting"
        seen_ago = frontier.seen_ago.get(worker.pid)
        return [
            *(str(worker.number), str(worker.pid)),
            *(f"{site.pages[worker.pid]:,}", f"{stored[worker.pid]:,}"),
            f"{frontier.leases.get(worker.pid, 0):,}",
            "" if seen_ago is None else f"{seen_ago:.1f} s ago",
            Text(state, _STYLES.get(state, "")),
        ]

    return _table("", "worker pid fetched stored leased seen state", map(row, workers))


def final_workers(
    workers: Sequence[Worker], site: SiteLog, stored: Counter[int], killed: Killed | None
) -> Table:
    """Who did what: pages fetched by the site's log, and pages that it wrote to the database."""

    def row(worker: Worker) -> list[str | Text]:
        end = worker.reason
        if killed and worker.pid == killed.pid:
            end = f"killed, held {killed.held:,}"
        return [
            *(str(worker.number), str(worker.pid)),
            *(f"{site.pages[worker.pid]:,}", f"{stored[worker.pid]:,}"),
            Text(end, _STYLES.get(worker.reason, "red")),
        ]

    pages = sum(site.pages[worker.pid] for worker in workers)
    total = ["all", "", f"{pages:,}", f"{stored.total():,}", ""]
    return _table("Workers", "worker pid fetched stored state", [*map(row, workers), total])


def final_checks(checks: Sequence[Check], database: str) -> Table:
    """What was promised and what was found."""
    rows = [
        (
            *(check.name, check.found, check.expected),
            Text("WRONG", "bold red") if check.complaint else Text("ok", "green"),
        )
        for check in checks
    ]
    return _table(f"Result in {database}", "promise found expected kept", rows)
