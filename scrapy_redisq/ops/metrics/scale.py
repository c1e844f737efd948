"""How many workers would have work, as autoscalers ask: ``/scale/NAME?min=1&max=10``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scrapy_redisq.control import Frontier

MOST = 10_000
"""Workers that may be asked for."""


def scale(frontier: Frontier, query: Mapping[str, str]) -> dict[str, Any]:
    """-> {"workers": N, "because": "…"}.

    ``query``: ``min`` (0), ``max`` (1,000), ``pages_per_minute`` and ``concurrency`` of a worker,
    ``rest_after`` (seconds), ``run`` (REDISQ_RUN of the workers); see `Frontier.wanted_workers`.
    Raises ValueError for other parameters, and what that does if Redis is away: then nobody should
    scale.
    """
    unknown = set(query) - {"min", "max", "pages_per_minute", "concurrency", "rest_after", "run"}
    if unknown:
        raise ValueError(f"there is no {', '.join(sorted(unknown))}")
    least = int(_number(query, "min", 0, 0, MOST))
    most = int(_number(query, "max", 1_000, 0, MOST))
    if least > most:
        raise ValueError(f"min is {least}, max {most}")
    pace = _number(query, "pages_per_minute", 0, 0, 1e9)
    wanted = frontier.wanted_workers(
        least=least,
        most=most,
        pages_per_minute=pace or None,
        concurrency=int(_number(query, "concurrency", 16, 1, 1e6)),
        rest_after=_number(query, "rest_after", math.inf, 0, math.inf),
        run=query.get("run", ""),
    )
    return {"workers": wanted.workers, "because": wanted.because}


def _number(
    query: Mapping[str, str], name: str, default: float, least: float, most: float
) -> float:
    try:
        value = float(query.get(name, default))
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ValueError(f"{name} takes a number from {least:g} to {most:g}")
    return value
