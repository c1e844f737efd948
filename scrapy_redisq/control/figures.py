"""Figures from the samples of a crawl: how fast it is, how it went, and when it may end."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

NOW, TREND = 60.0, 600.0
"""Seconds over which a rate "now" is averaged, and it is seen whether the crawl comes to an end."""

SHORTEST = 5.0
"""Seconds below which a rate says nothing."""

Sample = Mapping[str, Any]


def figures(status: Mapping[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """``pages_per_minute``, ``items_per_minute``, ``errors_per_minute`` (None: not known yet),
    ``left`` (seconds until the end; None: it is not in sight), and ``recent``, pages a minute
    from sample to sample."""
    own = [sample for sample in samples if sample["run"] == status["run"]]
    is_running = status["state"] == "running"
    told: dict[str, Any] = {
        f"{what}_per_minute": _rate(_last(own, NOW), what) if is_running else 0.0
        for what in ("pages", "items", "errors")
    }
    told["left"] = _left(status, _last(own, TREND)) if is_running else None
    told["recent"] = [_rate(pair, "pages") or 0.0 for pair in itertools.pairwise(own)]
    return told


def _last(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    return [sample for sample in samples if samples[-1]["at"] - sample["at"] <= seconds]


def _span(samples: Sequence[Sample]) -> float:
    return samples[-1]["at"] - samples[0]["at"] if samples else 0.0


def _rate(samples: Sequence[Sample], what: str) -> float | None:
    """A minute; None if the time is too short to tell."""
    if _span(samples) < SHORTEST:
        return None
    # Requeued dead letters are no longer finished; nobody un-fetches a page.
    more: float = max(0, samples[-1][what] - samples[0][what])
    return round(60 * more / _span(samples), 1)


def _left(status: Mapping[str, Any], samples: Sequence[Sample]) -> float | None:
    """Seconds, if what is found goes on to be less than what is finished; None: it grows, or it
    is too early to tell."""
    if _span(samples) < NOW:
        return None
    first, last = samples[0], samples[-1]
    less = (last["finished"] - first["finished"]) - (last["created"] - first["created"])
    unfinished = status["queued"] + status["delayed"] + status["leased"]
    return round(unfinished * _span(samples) / less, 1) if less > 0 else None
