"""What all benchmarks share: alternating rounds, results as JSON and as Markdown."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import psutil

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
        return cls(what, f"≥ {goal:,g}{unit}", shown or f"{value:.2f}{unit}", value >= goal)

    @classmethod
    def at_most(
        cls, what: str, value: float, goal: float, *, shown: str = "", unit: str = " x"
    ) -> Target:
        return cls(what, f"≤ {goal:,g}{unit}", shown or f"{value:.2f}{unit}", value <= goal)

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

    @classmethod
    def load(cls, name: str) -> Result | None:
        """The result of a full run, if there was one."""
        file = RESULTS / f"{name}.json"
        if not file.exists():
            return None
        found = json.loads(file.read_text())
        return cls(**found | {"targets": [Target(**target) for target in found["targets"]]})

    def markdown(self) -> Iterator[str]:
        """The lines of the table, of the goals and of the notes."""
        texts = [any(isinstance(row.get(name), str) for row in self.rows) for name in self.columns]
        yield _row(self.columns)
        yield "|" + "|".join("---" if text else "---:" for text in texts) + "|"
        for row in self.rows:
            yield _row(shown(row.get(name, "")) for name in self.columns)
        if self.targets:
            yield "\n| goal | wanted | measured | |\n|---|---:|---:|---|"
        for goal in self.targets:
            verdict = "reached" if goal.reached else "**not reached**"
            yield _row([goal.what, goal.wanted, goal.measured, verdict])
        yield from ["", *(f"- {note}" for note in self.notes)] if self.notes else []


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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


def medians(runs: list[Figures]) -> Figures:
    """The median of each figure."""
    return {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}


def ratio(runs: list[Figures], beside: list[Figures], figure: str) -> float:
    """Median of the rounds' ratios of a figure, which are neighbours in time."""
    pairs = zip(runs, beside, strict=True)
    return statistics.median(run[figure] / other[figure] for run, other in pairs)
