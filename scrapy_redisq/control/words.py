"""Numbers, sizes and times as sentences for people have them."""

from __future__ import annotations

from datetime import datetime, timezone


def counted(number: float, what: str) -> str:
    """ "1 host", "1,234 hosts"."""
    return f"{number:,.0f} {what}{'' if round(number) == 1 else 's'}"


def size_text(size: float) -> str:
    """Bytes, in the largest unit of which there is one."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,.0f} bytes"


def time_text(seconds: float) -> str:
    """A length of time in one unit, about as exact as anybody wants to know it."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def utc(seconds: float) -> str:
    """A time in seconds since 1970, in ISO format."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
