"""What a request's meta says of its time: how long it waits, and how often it was retried."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from scrapy.http import Request

DELAY_KEY = "redisq_delay"
"""In a request's meta: seconds that the frontier keeps it back."""

MAX_DELAY = 31_536_000.0
"""Longest delay in seconds, a year."""

DELAY_TAKES = "seconds from 0 to 31,536,000 (a year)"


def delay_of(meta: Mapping[str, Any]) -> float:
    """The seconds in ``meta["redisq_delay"]``; raises ValueError if it is no such number."""
    value = meta[DELAY_KEY]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY:
        return float(value)
    raise ValueError(f"meta[{DELAY_KEY!r}] = {value!r:.100}: takes {DELAY_TAKES}")


def without_delay(request: Request) -> Request:
    """A copy that does not wait: what is made of its meta later must not inherit the delay."""
    return request.replace(meta={k: v for k, v in request.meta.items() if k != DELAY_KEY})


def retry_times(meta: Mapping[str, Any], key: str = "retry_times") -> int:
    """How often a request was retried, as Scrapy's get_retry_request() counts in its meta; or
    redirected, by ``key``."""
    times = meta.get(key, 0)
    return times if isinstance(times, int) else 0


def milliseconds(seconds: float) -> int:
    """As the frontier counts delays; rounded up, so that nothing is early."""
    return math.ceil(seconds * 1000)
