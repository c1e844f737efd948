"""Times and sizes in a report."""

from __future__ import annotations


def ms_text(seconds: float) -> str:
    return f"{seconds * 1_000:.1f} ms"


def size_text(size: float) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,.0f} bytes"


def time_text(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"
