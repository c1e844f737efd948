"""CPU and memory of this machine, as far as Linux says."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

RESERVE = 0.10
"""Share of the memory that is left free when a worker is started."""

SHORT = 0.04
"""Share of the memory below which there is one worker too many."""

FIRST_GUESS = 200 * 2**20
"""Bytes that a worker takes, while none has run for a while."""


def processors() -> int:
    """CPUs that this process may use."""
    if sys.platform.startswith("linux"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Load:
    """A machine's load: ``cpu``, the share that was busy; bytes of memory. None: not known."""

    cpu: float | None = None
    free: int | None = None
    total: int | None = None

    def has_room(self, worker_bytes: int, most_cpu: float) -> bool:
        """For one more worker, that takes as much as the largest."""
        is_busy = self.cpu is not None and most_cpu and self.cpu >= most_cpu
        return not is_busy and not self._is_below(RESERVE, max(worker_bytes, FIRST_GUESS))

    @property
    def is_short(self) -> bool:
        """Memory is about to run out."""
        return self._is_below(SHORT)

    def _is_below(self, share: float, taken: int = 0) -> bool:
        """Whether less than that share of the memory is free, when ``taken`` bytes are."""
        if self.free is None or self.total is None:
            return False
        return self.free - taken < share * self.total


class Machine:
    """Looks again and again; the CPU's share is that since the last look."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def look(self) -> Load:
        told = dict(re.findall(r"^(\w+): +(\d+) kB", _read(PROC / "meminfo"), re.M))
        if not {"MemAvailable", "MemTotal"} <= set(told):
            return Load(self._cpu())
        free, total = (int(told[name]) * 1024 for name in ("MemAvailable", "MemTotal"))
        return Load(self._cpu(), free, total)

    def _cpu(self) -> float | None:
        told = re.match(r"cpu +([\d ]+)", _read(PROC / "stat"))
        if not told:  # not Linux
            return None
        user, nice, system, idle, waiting, *others = map(int, told[1].split()[:8])
        busy = user + nice + system + sum(others)
        before, self._last = self._last, (busy, busy + idle + waiting)
        if before is None or self._last[1] <= before[1]:
            return None
        return (self._last[0] - before[0]) / (self._last[1] - before[1])


def exists(pid: int) -> bool:
    """Whether there is a process of this id."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # somebody else's
    except (OSError, OverflowError):
        return False
    return pid > 0


def resident(pid: int) -> int:
    """Bytes of memory that a process has, 0 if nobody says."""
    found = re.search(r"^VmRSS:\s+(\d+) kB", _read(PROC / str(pid) / "status"), re.M)
    return int(found[1]) * 1024 if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
