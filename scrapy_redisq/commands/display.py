"""What people see: compact, readable in 80 columns and whole in fewer, whatever the names hold."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.text import Text

from scrapy_redisq.commands.table import Cell, Column, Table

PIPE_WIDTH = 120
"""Columns where nobody says how many there are: in files and pipes."""

LONGEST_LINE = 80
"""Columns of sentences: longer lines are hard to read."""

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
    width = None
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdecimal() or not int(columns):  # 0, as some terminals say: it is not known
        if not sys.stdout.isatty():
            width = PIPE_WIDTH
        elif columns:
            width = shutil.get_terminal_size().columns
    return Console(width=width, highlight=False, markup=False, emoji=False)


def write_nothing_more() -> None:
    """Nobody reads stdout any more, or it is full: what is written, also at exit, goes nowhere."""
    with contextlib.suppress(OSError, ValueError):  # no file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def can_refresh(console: Console) -> bool:
    """Whether what was shown can be shown anew in its place."""
    return console.is_terminal and not console.is_dumb_terminal


def duration(seconds: float) -> str:
    """A length of time in its two largest units: "42 s", "3 m 12 s", "2 d 5 h"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def ago(at: str) -> str:
    """How long ago a UTC time in ISO format is, by this machine's clock."""
    now = datetime.now(timezone.utc)
    return duration((now - datetime.fromisoformat(at)).total_seconds())


def rate(per_second: float | None) -> str:
    """Pages per second, empty while it is not known yet."""
    return "" if per_second is None else f"{per_second:,.1f}"


def _share(part: float, whole: float) -> str:
    if not whole:
        return ""
    percent = 100 * part / whole
    # 99.97 % of a crawl is not all of it.
    return f"{int(percent)} %" if percent >= 1 or not part else "< 1 %"


# One frontier


def full(status: Mapping[str, Any], rates: Mapping[str, float | None]) -> RenderableType:
    """All of one frontier. ``rates``: pages per second of workers by id, of all under ""."""
    if status["state"] == "absent":
        return Text(f"{clean(status['frontier'])}: there is no such frontier", style="yellow")
    parts: list[RenderableType] = [_title(status), _numbers(status, rates), _seen(status)]
    if any(status["sink"].values()):
        parts.append(_sink(status["sink"]))
    if status["set_aside"] or status["paused"]:
        parts.append(_slots(status))
    if status["posted"]:
        text = f"{status['posted']:,} finished pages whose links to other servers are not safe yet"
        parts.append(Text.assemble(("posts ", "dim"), text))
    if status["workers"]:
        parts += [Text(""), _workers(status["workers"], rates)]
    if "why" in status:
        parts += _why(status["why"])
    return Group(*parts)


SAID_ELSEWHERE = {"absent", "complete", "resetting"}
BAD_REASONS = {"corrupt", "redis_full", "redis_refuses", "shard_away", "sink_away"}


def _why(why: Mapping[str, Any]) -> list[RenderableType]:
    """Why little or nothing happens."""
    if why["reason"] in SAID_ELSEWHERE:
        return []
    style = "bold red" if why["reason"] in BAD_REASONS else "yellow"
    text = Text(clean(why["text"]), style="" if why["reason"] == "working" else style)
    lines = [text, *(Text(clean(line), style="dim") for line in why["also"])]
    return [Text(""), *(Constrain(line, LONGEST_LINE) for line in lines)]


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


def _numbers(status: Mapping[str, Any], rates: Mapping[str, float | None]) -> RenderableType:
    """Names and numbers, as many beside each other as fit."""
    names = (
        *("created", "queued", "dead", "finished", "leased", "duplicates"),
        *("done", "delayed", "reclaimed"),
    )
    told = {name: f"{status[name]:,}" for name in names}
    if rates.get("") is not None:
        told["pages/s"] = rate(rates[""])
        told["progress"] = _share(status["finished"], status["created"])
    if status["dropped"]:
        told["dropped"] = f"{status['dropped']:,}"
    cells = [
        Text.assemble((f"{name:<11}", "dim"), _number(name, f"{value:>11}"))
        for name, value in told.items()
    ]
    return Columns(cells, padding=(0, 4, 0, 0))


def _number(name: str, value: str) -> Text:
    return Text(value, style="bold red" if name == "dead" and value.strip() != "0" else "")


def _seen(status: Mapping[str, Any]) -> Text:
    dupefilter = status["dupefilter"]
    backend = BACKENDS.get(dupefilter["backend"], clean(dupefilter["backend"]))
    text = f"{status['seen']:,} in {backend}"
    if dupefilter["kind"] not in {"bloom", "exact"}:
        text += f" (start requests; others in {clean(dupefilter['kind'])})"
    elif dupefilter["backend"] != "exact":
        text += f", {_share(dupefilter['fill'], 1) or '0 %'} full"
        if (loss := dupefilter["expected_loss"]) > NO_LOSS:
            text += f", loses 1 new URL in {1 / loss:,.0f}"
    return Text.assemble(("seen ", "dim"), text)


def _sink(sink: Mapping[str, Any]) -> Text:
    """What item pipelines wrote: how much, how fast, and what went wrong."""
    text = f"{sink['rows']:,} rows in {sink['batches']:,} batches, {sink['seconds']:,.1f} s"
    if sink["retries"]:
        text += f", {sink['retries']:,} retries"
    refused = (f", {sink['refused']:,} refused", "bold red") if sink["refused"] else ""
    return Text.assemble(("sink ", "dim"), text, refused)


def _slots(status: Mapping[str, Any]) -> Text:
    """Slots that wait for something else than their turn: they keep a crawl from its end."""
    counts = (("set aside", status["set_aside"]), ("paused", status["paused"]))
    text = ", ".join(f"{n:,} {what}" for what, n in counts if n)
    see = f"  (scrapy redisq slots {clean(status['frontier'])})"
    return Text.assemble(("slots ", "dim"), (text, "yellow"), (see, "dim"))


def _workers(workers: Sequence[Mapping[str, Any]], rates: Mapping[str, float | None]) -> Table:
    with_rates = rates.get("") is not None
    names = ("leased", "pages", "items", *(["pages/s"] if with_rates else []), "up", "heard of")
    rows: list[list[Cell]] = []
    for worker in sorted(workers, key=lambda item: (item["host"], item["pid"], item["id"])):
        heard = f"{worker['seen_ago']:.1f} s ago"
        if worker["seen_ago"] >= 60:
            heard = f"{duration(worker['seen_ago'])} ago"
        rows.append(
            [
                f"{clean(worker['host'])}:{worker['pid']}",
                f"{worker['leased']:,}",
                f"{worker['pages']:,}",
                f"{worker['items']:,}",
                *([rate(rates.get(worker["id"]))] if with_rates else []),
                ago(worker["since"]),
                heard if worker["alive"] else Text(f"dead, {heard}", style="bold red"),
            ]
        )
    return Table([Column("worker", folds=True, left=True), *map(Column, names)], rows)


# Many frontiers


def overview(statuses: Sequence[Mapping[str, Any]], rates: Sequence[float | None]) -> Table:
    """One line for each frontier."""
    with_rates = any(per_second is not None for per_second in rates)
    names = ("queued", "leased", "finished", "dead")
    rows: list[list[Cell]] = []
    for status, per_second in zip(statuses, rates, strict=True):
        state = clean(status["state"])
        waiting = {**status, "queued": status["queued"] + status["delayed"]}
        rows.append(
            [
                clean(status["frontier"]),
                Text(state, style=STATE_STYLES.get(state, "")),
                *(f"{waiting[name]:,}" for name in names),
                str(sum(worker["alive"] for worker in status["workers"])),
                *([rate(per_second)] if with_rates else []),
            ]
        )
    numbers = (*names, "workers", *(["pages/s"] if with_rates else []))
    frontier = Column("frontier", folds=True, left=True)
    return Table([frontier, Column("state", left=True), *map(Column, numbers)], rows)


def line(status: Mapping[str, Any], per_second: float | None) -> str:
    """One plain line, for watching where there is no terminal."""
    parts = [datetime.now().strftime("%H:%M:%S"), clean(status["frontier"]), clean(status["state"])]
    names = ("created", "finished", "queued", "delayed", "leased", "dead", "duplicates")
    parts += [f"{name} {status[name]:,}" for name in names]
    parts.append(f"workers {sum(worker['alive'] for worker in status['workers'])}")
    if per_second is not None:
        parts.append(f"pages/s {rate(per_second)}")
    return "  ".join(parts)
