"""Output for people: compact, readable in 80 columns, whatever the names hold."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import zip_longest
from typing import Any

from rich import box
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from scrapy_redisq.control.words import size_text, time_text

Cell = str | Text

PIPE_WIDTH = 120
"""Columns where nobody says how many there are: in files and pipes."""

LONGEST_LINE = 80
"""Columns of sentences: longer lines are hard to read."""

NARROWEST, GAP = 8, 2
"""Columns of a table's column that is folded, and between two of them."""

NO_LOSS = 1e-12
"""Expected loss below which it is not worth a word: less than one URL in any crawl."""

STATE_STYLES = {"running": "bold green", "stopped": "bold yellow", "complete": "bold cyan"}
BACKENDS = {
    "redisbloom": "Bloom filter of RedisBloom",
    "bitmap": "Bloom filter on bitmaps",
    "exact": "exact",
}

# Names, URLs and reasons come from Redis and from pages: they must not steer the terminal.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """``text`` on one line, with control characters and what cannot be printed made visible."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def clean_lines(text: str) -> str:
    """The same of a text that has lines, and tabs in them."""
    return re.sub(r"[^\n\t]+", lambda part: clean(part[0]), text)


def one_line(text: str) -> str:
    """``text`` cleaned, on one line."""
    return clean("; ".join(line.strip() for line in text.splitlines() if line.strip()))


def console() -> Console:
    """Where tables go: stdout, as it is at the moment."""
    # COLUMNS is 0 where a terminal does not know it: rich would draw nothing.
    is_known = sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = None if is_known else shutil.get_terminal_size((PIPE_WIDTH, 0)).columns
    return Console(width=width, highlight=False, markup=False, emoji=False)


def write_nothing_more() -> None:
    """Nobody reads stdout any more, or it is full: what is written, also at exit, goes nowhere."""
    with contextlib.suppress(OSError, ValueError):  # no file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def can_refresh(console: Console) -> bool:
    """Whether what was shown can be shown anew in its place."""
    return console.is_terminal and not console.is_dumb_terminal


def ago(at: str) -> str:
    """How long ago a UTC time in ISO format is, by this machine's clock."""
    passed = datetime.now(timezone.utc) - datetime.fromisoformat(at)
    return time_text(max(0, int(passed.total_seconds())))


def known(value: Any, text: Callable[[Any], str] = "{:,.1f}".format) -> str:
    """Empty while it is not known yet."""
    return "" if value is None else text(value)


class _Rows:
    """A table; on a terminal of less than ``least`` columns each value has a line of its own."""

    def __init__(self, table: Table, least: int) -> None:
        self._table, self._least = table, least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= self._least:
            yield self._table
            return
        names = [str(column.header).split("\n") for column in self._table.columns]
        width = max(len(name) for lines in names for name in lines)
        for row in zip(*(column.cells for column in self._table.columns), strict=True):
            for lines, cell in zip(names, row, strict=True):
                assert isinstance(cell, Text)
                for name, value in zip_longest(lines, cell.split("\n"), fillvalue=""):
                    if value:
                        yield Text.assemble((f"{name:<{width}}  ", "dim"), value, overflow="fold")
            yield Text("")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, left: Collection[str] = ()
) -> RenderableType:
    """A table. The first column and those in ``left`` hold words, which are folded where they do
    not fit; the others hold numbers, which stay whole. An empty column is left out."""
    rows = list(rows)
    shown = [i for i in range(len(columns)) if i == 0 or any(row[i] for row in rows)]
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
        border_style="dim",
    )
    widths = []
    for i in shown:
        if i == 0 or columns[i] in left:
            longest = max((len(word) for row in rows for word in str(row[i]).split()), default=0)
            widths.append(min(longest, NARROWEST))
            table.add_column(columns[i], overflow="fold", min_width=widths[-1])
        else:
            lines = [
                line
                for cell in (columns[i], *(row[i] for row in rows))
                for line in str(cell).split("\n")
            ]
            widths.append(max(map(len, lines)))
            table.add_column(columns[i], justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text.assemble(row[i]) for i in shown))
    return _Rows(table, sum(widths) + GAP * (len(widths) - 1))


def sentence(text: str, style: str = "") -> RenderableType:
    """A line of words, no longer than can be read."""
    return Constrain(Text(clean(text), style=style), LONGEST_LINE)


def _share(part: float, whole: float) -> str:
    if not whole:
        return ""
    percent = 100 * part / whole
    # 99.97 % of a crawl is not all of it.
    return f"{int(percent)} %" if percent >= 1 or not part else "< 1 %"


# One frontier


def full(status: Mapping[str, Any], where: str = "") -> RenderableType:
    """All of one frontier, by `Frontier.look`; `where` ends the sentence that there is none."""
    if status["state"] == "absent":
        name = clean(status["frontier"])
        return Text(f"{name}: there is no such frontier{where}", style="yellow")
    parts: list[RenderableType] = [_title(status), _numbers(status), *_remarks(status)]
    if status["workers"]:
        parts += [Text(""), worker_table(status["workers"])]
    why = status["why"]
    if why["reason"] not in SAID_ELSEWHERE:
        style = "bold red" if why["reason"] in BAD_REASONS else "yellow"
        style = "" if why["reason"] == "working" else style
        parts += [Text(""), sentence(why["text"], style)]
        parts += [sentence(text, "dim") for text in why["also"]]
    return Group(*parts)


STATS = (
    ("downloader/response_bytes", "bytes received"),
    ("retry/count", "retries"),
    ("log_count/WARNING", "warnings"),
    ("log_count/ERROR", "errors logged"),
)
"""Scrapy's stats of all workers that are shown, and in which words."""

SAID_ELSEWHERE = {"absent", "complete", "resetting"}
BAD_REASONS = {"corrupt", "redis_full", "redis_refuses", "shard_away", "sink_away"}


def _title(status: Mapping[str, Any]) -> Text:
    began = f", began {ago(status['began'])} ago" if status["began"] else ""
    spider = f", spider {clean(status['spider'])}" if status["spider"] else ""
    arguments = f", -a {clean(status['arguments'])}" if status["arguments"] else ""
    state, run = clean(status["state"]), clean(status["run"] or "")
    if status["run_name"]:
        run = f"{clean(status['run_name'])} ({run})"
    return Text.assemble(
        (clean(status["frontier"]), "bold"),
        "  ",
        (state, STATE_STYLES.get(state, "")),
        (f"  run {run}{began}{spider}{arguments}", "dim"),
    )


def _numbers(status: Mapping[str, Any]) -> RenderableType:
    """Names and numbers, as many beside each other as fit."""
    names = (
        *("created", "queued", "dead", "finished", "leased", "duplicates"),
        *("done", "delayed", "reclaimed"),
    )
    told = {name: f"{status[name]:,}" for name in names}
    if status["state"] == "running":
        told["pages/min"] = known(status["pages_per_minute"])
        told["progress"] = _share(status["finished"], status["created"])
        told["left"] = known(status["left"], time_text)
    if status["dropped"]:
        told["dropped"] = f"{status['dropped']:,}"
    bad = "bold red" if status["dead"] else ""
    cells = [
        Text.assemble((f"{name:<11}", "dim"), (f"{value:>11}", bad if name == "dead" else ""))
        for name, value in told.items()
        if value
    ]
    return Columns(cells, padding=(0, 4, 0, 0))


def _remarks(status: Mapping[str, Any]) -> Iterable[Text]:
    """The dupefilter; and sinks, slots that wait for something else than their turn, and links to
    other servers, if there are any."""
    dupefilter = status["dupefilter"]
    backend = BACKENDS.get(dupefilter["backend"], clean(dupefilter["backend"]))
    text = f"{status['seen']:,} in {backend}"
    if dupefilter["kind"] not in {"bloom", "exact"}:
        text += f" (start requests; others in {clean(dupefilter['kind'])})"
    elif dupefilter["backend"] != "exact":
        text += f", {_share(dupefilter['fill'], 1) or '0 %'} full"
        if (loss := dupefilter["expected_loss"]) > NO_LOSS:
            text += f", loses 1 new URL in {1 / loss:,.0f}"
    yield Text.assemble(("seen ", "dim"), text)
    sink = status["sink"]
    if any(sink.values()):
        text = f"{sink['rows']:,} rows in {sink['batches']:,} batches, {sink['seconds']:,.1f} s"
        retries = f", {sink['retries']:,} retries" if sink["retries"] else ""
        refused = f", {sink['refused']:,} refused" if sink["refused"] else ""
        yield Text.assemble(("sink ", "dim"), text, retries, (refused, "bold red"))
    counts = {"set aside": status["set_aside"], "paused": status["paused"]}
    if text := ", ".join(f"{n:,} {what}" for what, n in counts.items() if n):
        see = f"  (scrapy redisq slots {clean(status['frontier'])})"
        yield Text.assemble(("slots ", "dim"), (text, "yellow"), (see, "dim"))
    if feeds := status["feeds"]:
        lines = (f"{known(n, '{:,}'.format) or '?'} in {clean(key)}" for key, n in feeds.items())
        yield Text.assemble(("feeds ", "dim"), f"lines that wait: {', '.join(lines)}")
    stats = status["stats"]
    if text := ", ".join(f"{n:,} {what}" for name, what in STATS if (n := stats.get(name))):
        yield Text.assemble(("stats ", "dim"), text, ("  (all: --json)", "dim"))
    if status["posted"]:
        text = f"{status['posted']:,} finished pages whose links to other servers are not safe yet"
        yield Text.assemble(("posts ", "dim"), text)


def worker_table(workers: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Two lines for each worker, by host and process: 60 columns are enough."""
    rows: list[Sequence[Cell]] = [
        (
            f"{clean(worker['host'])}:{worker['pid']}\n{clean(worker['release'])}",
            _worker_state(worker),
            f"{worker['leased']:,}\n{known(worker['pages_per_minute'])}",
            f"{worker['pages']:,}\n{worker['items']:,}",
            f"{known(worker['cpu_seconds'], time_text)}\n{known(worker['rss_bytes'], size_text)}",
            f"{ago(worker['since'])}\n{time_text(worker['seen_ago'])} ago",
        )
        for worker in sorted(workers, key=lambda one: (one["host"], one["pid"], one["id"]))
    ]
    columns = (
        *("worker\nrelease", "state", "leased\npages/min", "pages\nitems", "CPU\nmemory"),
        "up\nheard of",
    )
    return table(columns, rows, left={"state"})


def _worker_state(worker: Mapping[str, Any]) -> Text:
    if not worker["alive"]:
        return Text("dead", style="bold red")
    if worker["told"] == "stop":
        return Text("stops", style="yellow")
    if worker["quiet"]:
        return Text("quiet", style="yellow")
    if worker["told"] == "quiet" and worker["quiet"] is None:
        return Text("told to be quiet", style="yellow")
    return Text("sink away", style="bold red") if worker["sink"] else Text("works")


# Many frontiers


def overview(statuses: Iterable[Mapping[str, Any]]) -> RenderableType:
    """One line for each frontier."""
    names = ("queued", "leased", "finished", "dead")
    rows: list[list[Cell]] = []
    for status in statuses:
        state = clean(status["state"])
        waiting = {**status, "queued": status["queued"] + status["delayed"]}
        rows.append(
            [
                clean(status["frontier"]),
                Text(state, style=STATE_STYLES.get(state, "")),
                *(f"{waiting[name]:,}" for name in names),
                str(sum(worker["alive"] for worker in status["workers"])),
                known(status["pages_per_minute"] or None, "{:,.0f}".format),
            ]
        )
    return table(("frontier", "state", *names, "workers", "per min"), rows, left={"state"})


def line(status: Mapping[str, Any]) -> str:
    """One plain line, for watching where there is no terminal."""
    parts = [datetime.now().strftime("%H:%M:%S"), clean(status["frontier"]), clean(status["state"])]
    names = ("created", "finished", "queued", "delayed", "leased", "dead", "duplicates")
    parts += [f"{name} {status[name]:,}" for name in names]
    parts.append(f"workers {sum(worker['alive'] for worker in status['workers'])}")
    if status["pages_per_minute"]:
        parts.append(f"pages/min {status['pages_per_minute']:,.1f}")
    return "  ".join(parts)
