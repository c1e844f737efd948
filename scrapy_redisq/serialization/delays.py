"""How long a request waits before it may be fetched: ``meta["redisq_delay"]``, and retries."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from scrapy.http import Request, Response

DELAY_KEY = "redisq_delay"
"""In a request's meta: seconds that the frontier keeps it back."""

MAX_DELAY = 31_536_000.0
"""Longest delay in seconds, a year."""

DELAY_TAKES = "seconds from 0 to 31,536,000 (a year)"

_MAX_DOUBLINGS = 64
"""More would leave the range of floats; any cap is reached long before."""

_DATE_LENGTH = 64
"""Longer texts than this are no HTTP dates (which take 29 to 33 characters)."""


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


@dataclass(frozen=True)
class RetryPauses:
    """How long a retry waits, in seconds.

    ``delays`` are the pauses before the first, second… retry, of which the last is repeated; or
    "exponential": a random time up to ``base`` doubled with each retry, at most ``cap`` ("full
    jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS, 2015). ``retry_after_max`` bounds
    what a server may ask for.
    """

    delays: tuple[float, ...] | str
    base: float
    cap: float
    retry_after_max: float

    def before(self, retry: int) -> float:
        """The pause before the ``retry``-th retry, counted from 1."""
        number = max(1, retry)
        if not isinstance(self.delays, str):
            return self.delays[min(number, len(self.delays)) - 1]
        return random.uniform(0, min(self.cap, self.base * 2.0 ** min(number - 1, _MAX_DOUBLINGS)))

    def after(self, response: Response, retry: int) -> float:
        """The pause that ``response`` asks for by Retry-After, else `before`."""
        asked = retry_after(response)
        if asked is None or asked <= 0 or self.retry_after_max <= 0:
            return self.before(retry)
        return min(asked, self.retry_after_max)


def retry_after(response: Response) -> float | None:
    """Seconds from the header Retry-After (RFC 9110, 10.2.3), a number or a date; else None.

    A date is compared with the server's own Date where it sends one, because its clock and this
    one need not agree. May be negative, and as large as a float gets.
    """
    text = header(response, "Retry-After")
    if re.fullmatch(r"[0-9]+", text):
        return float(text[:_DATE_LENGTH]) if len(text) <= _DATE_LENGTH else math.inf
    until = http_date(text)
    if until is None:
        return None
    now = http_date(header(response, "Date")) or datetime.now(timezone.utc)
    return (until - now).total_seconds()


def header(response: Response, name: str) -> str:
    """The header's value, "" without it."""
    return (response.headers.get(name) or b"").decode("latin-1").strip()


def http_date(text: str) -> datetime | None:
    """A date of a header; None if it is none."""
    if not text or len(text) > _DATE_LENGTH:
        return None
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)
