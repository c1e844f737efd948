"""Lines of a report, and how bad each is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from typing import Any


class Level(IntEnum):
    """How bad it is. `WARNING`: it makes a crawl slow, lossy or rude in some cases; `PROBLEM`: in
    all cases, or no crawl works so."""

    OK = 0
    NOTE = 1
    WARNING = 2
    PROBLEM = 3


@dataclass(frozen=True)
class Line:
    """One thing that was looked at: ``what`` was found, ``why`` that matters and what to ``set``.
    The latter two are empty where all is well. ``about``: the part of the report."""

    level: Level
    what: str
    why: str = ""
    set: str = ""
    about: str = ""


@dataclass
class Report:
    """All lines, by part. ``server`` is the address without password."""

    server: str
    frontier: str | None = None
    lines: list[Line] = field(default_factory=list)

    def add(self, about: str, lines: Iterable[Line]) -> None:
        """Take in what was found about a part of it, as far as that comes before it raises."""
        self.lines.extend(replace(line, about=about) for line in lines)

    @property
    def level(self) -> Level:
        """The worst of them."""
        return max((line.level for line in self.lines), default=Level.OK)

    @property
    def exit_code(self) -> int:
        """0: nothing is worse than a note."""
        return 0 if self.level <= Level.NOTE else 1

    def counts(self) -> dict[str, int]:
        """How many lines of each level."""
        found = Counter(line.level for line in self.lines)
        return {level.name.lower(): found[level] for level in reversed(Level)}

    def parts(self) -> Iterator[tuple[str, list[Line]]]:
        """The lines of each part, the worst first."""
        for about in dict.fromkeys(line.about for line in self.lines):
            lines = (line for line in self.lines if line.about == about)
            yield about, sorted(lines, key=lambda line: -line.level)

    def to_json(self) -> dict[str, Any]:
        """All of it in JSON's types."""
        return {
            "server": self.server,
            "frontier": self.frontier,
            "level": self.level.name.lower(),
            "counts": self.counts(),
            "lines": [{**asdict(line), "level": line.level.name.lower()} for line in self.lines],
        }


def ok(what: str) -> Line:
    return Line(Level.OK, what)


def note(what: str, why: str, set: str = "") -> Line:
    return Line(Level.NOTE, what, why, set)


def warning(what: str, why: str, set: str) -> Line:
    return Line(Level.WARNING, what, why, set)


def problem(what: str, why: str, set: str) -> Line:
    return Line(Level.PROBLEM, what, why, set)
