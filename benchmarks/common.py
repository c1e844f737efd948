"""What all benchmarks share: alternating rounds, results as JSON and as a table."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

Figures = dict[str, float]
Name = TypeVar("Name")


def cpu_of(info: Mapping[str, Any]) -> float:
    """Seconds that all threads of a Redis server have used, the network included, by its INFO."""
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def machine() -> dict[str, Any]:
    """The machine, as far as it explains figures."""
    file = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.*)", file.read_text() if file.exists() else "")
    return {
        "cpu": named[1] if named else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(terse=True),
    }


def versions() -> dict[str, str]:
    """Versions of what is measured."""
    packages = ("scrapy-redisq", "scrapy", "redis", "msgspec", "twisted")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


@dataclass
class Target:
    """A figure that was set as a goal, and what came out."""

    what: str
    wanted: str
    measured: str
    reached: bool

    @classmethod
    def at_least(
        cls, what: str, value: float, goal: float, *, shown: str = "", unit: str = " x"
    ) -> Target:
        """By default of how many times another figure it is."""
        measured = shown or f"{value:.2f}{unit}"
        return cls(what, f"≥ {goal:,g}{unit}", measured, value >= goal)

    @classmethod
    def at_most(
        cls, what: str, value: float, goal: float, *, shown: str = "", unit: str = " x"
    ) -> Target:
        measured = shown or f"{value:.2f}{unit}"
        return cls(what, f"≤ {goal:,g}{unit}", measured, value <= goal)

    @classmethod
    def none(cls, what: str, count: float) -> Target:
        return cls(what, "0", f"{count:g}", count == 0)


@dataclass
class Result:
    """What one benchmark found. ``rows`` are keyed by the names in ``columns``."""

    name: str
    title: str
    columns: list[str]
    rows: list[dict[str, Any]]
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    date: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="minutes")
    )
    machine: dict[str, Any] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)

    def save(self) -> Path:
        """Write the result as JSON."""
        file = RESULTS / f"{self.name}.json"
        file.write_text(json.dumps(asdict(self), indent=1, default=str) + "\n")
        return file

    def show(self, console: Console) -> None:
        """Print the table, the goals and the notes."""
        table = Table(
            title=self.title,
            box=box.SIMPLE_HEAD,
            title_justify="left",
            pad_edge=False,
            collapse_padding=True,
        )
        for column in self.columns:
            table.add_column(column, justify="left" if column == self.columns[0] else "right")
        # Beside many figures the names would be folded to a few letters; headings fold by words.
        names = [str(row.get(self.columns[0], "")) for row in self.rows]
        table.columns[0].min_width = min(24, max(map(len, names), default=0))
        for row in self.rows:
            table.add_row(*(shown(row.get(column, "")) for column in self.columns))
        console.print(table)
        for target in self.targets:
            mark = "[green]reached[/]" if target.reached else "[red]not reached[/]"
            console.print(f"{mark}  {target.what}: {target.measured} (goal: {target.wanted})")
        for note in self.notes:
            console.print(note, style="dim")


def shown(value: Any) -> str:
    """A figure for a table: three significant digits, thousands separated."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def alternating(
    variants: Mapping[Name, Callable[[], Figures]], rounds: int
) -> dict[Name, list[Figures]]:
    """Run every variant once a round, the order turned each time; -> figures of each round.

    Side by side, because what else the machine does changes from minute to minute.
    """
    measured: dict[Name, list[Figures]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            measured[name].append(variants[name]())
    return measured


def alternate(variants: Mapping[Name, Callable[[], Figures]], rounds: int) -> dict[Name, Figures]:
    """Medians of each figure of `alternating` rounds."""
    return {name: medians(runs) for name, runs in alternating(variants, rounds).items()}


def medians(runs: list[Figures]) -> Figures:
    """The median of each figure."""
    return {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}


def ratio(runs: list[Figures], beside: list[Figures], figure: str) -> float:
    """Median of the rounds' ratios of a figure, which are neighbours in time."""
    pairs = zip(runs, beside, strict=True)
    return statistics.median(run[figure] / other[figure] for run, other in pairs)
