"""Headers of responses that say when: Retry-After, and dates."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from scrapy.http import Response

_DATE_LENGTH = 64
"""Longer texts than this are no HTTP dates (which take 29 to 33 characters)."""


RETRY_AFTER_MAX = 600.0
"""Seconds: no server stops a crawl for longer by one answer; it may ask again."""


def retry_after(response: Response) -> float | None:
    """Seconds from the header Retry-After (RFC 9110, 10.2.3), a number or a date, at most
    `RETRY_AFTER_MAX`; None where the header says nothing that makes sense.

    A date is compared with the server's own Date where it sends one, because its clock and this
    one need not agree.
    """
    text = header(response, "Retry-After")
    if re.fullmatch(r"[0-9]+", text):
        asked = float(text[:_DATE_LENGTH])
    else:
        asked = seconds_until(text, response)
    return min(asked, RETRY_AFTER_MAX) if asked > 0 else None


def seconds_until(text: str, response: Response) -> float:
    """Seconds until a date of a header by the server's own clock; 0 if it is none."""
    until = _http_date(text)
    if until is None:
        return 0.0
    now = _http_date(header(response, "Date")) or datetime.now(timezone.utc)
    return (until - now).total_seconds()


def header(response: Response, name: str) -> str:
    """The header's value, "" without it."""
    return (response.headers.get(name) or b"").decode("latin-1").strip()


def _http_date(text: str) -> datetime | None:
    if not text or len(text) > _DATE_LENGTH:
        return None
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)
