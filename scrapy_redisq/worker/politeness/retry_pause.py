"""Pauses before retries: by the headers of a response, else by the settings."""

from __future__ import annotations

import random
import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from scrapy.http import Response

_DATE_LENGTH = 64
"""Longer texts than this are no HTTP dates (which take 29 to 33 characters)."""

RETRY_AFTER_MAX = 600.0
"""Seconds: no server stops a crawl for longer by one answer; it may ask again."""

BASE, CAP = 2.0, 300.0
"""Seconds. Other pauses than these are a list of one's own."""


def retry_pause(
    delays: tuple[float, ...] | str, retry: int, response: Response | None = None
) -> float:
    """Seconds before the ``retry``-th retry, counted from 1: those of the Retry-After of
    ``response``, else those of ``delays``, the last one repeated.

    "exponential" is a random time up to `BASE` doubled with each retry, at most `CAP` ("full
    jitter": Marc Brooker, "Exponential Backoff And Jitter", AWS, 2015).
    """
    if response is not None and (asked := retry_after(response)) is not None:
        return asked
    number = max(1, retry)
    if not isinstance(delays, str):
        return delays[min(number, len(delays)) - 1]
    return random.uniform(0, min(CAP, BASE * 2.0 ** min(number - 1, 64)))


def retry_after(response: Response) -> float | None:
    """Seconds from the header Retry-After (RFC 9110, 10.2.3), a number or a date, at most
    `RETRY_AFTER_MAX`; None where the header says nothing that makes sense.

    A date counts by the server's own clock, as this one need not agree with it.
    """
    text = _header(response, "Retry-After")
    asked = 0.0
    if re.fullmatch(r"[0-9]+", text):
        asked = float(text[:_DATE_LENGTH])
    elif until := _http_date(text):
        now = _http_date(_header(response, "Date")) or datetime.now(timezone.utc)
        asked = (until - now).total_seconds()
    return min(asked, RETRY_AFTER_MAX) if asked > 0 else None


def _header(response: Response, name: str) -> str:
    return (response.headers.get(name) or b"").decode("latin-1").strip()


def _http_date(text: str) -> datetime | None:
    if not text or len(text) > _DATE_LENGTH:
        return None
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)
