"""Keys of a request's meta: its delay, session and retries, and keys that are not safe."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from scrapy_redisq.errors import Unserializable

DELAY_KEY = "redisq_delay"
"""In a request's meta: seconds that the frontier keeps it back."""

SESSION_KEY = "redisq_session"
"""In a request's meta: what the page that asks for it shares with it. Both run in one process."""

WANTED_KEY = "redisq_wanted_again"
"""In a request's meta: how many of its retries were asked for by its callback or errback, which may
have asked for other requests, too. Downloader middlewares ask for the rest."""

MAX_DELAY = 31_536_000.0
"""Longest delay in seconds, a year."""

DELAY_TAKES = "seconds from 0 to 31,536,000 (a year)"


def delay_of(value: Any) -> float:
    """The seconds that ``meta["redisq_delay"]`` says. Raises ValueError with what it takes."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY:
        return float(value)
    raise ValueError(f"meta[{DELAY_KEY!r}] = {value!r:.100}: takes {DELAY_TAKES}")


def retry_times(meta: Mapping[str, Any], key: str = "retry_times") -> int:
    """How often a request was retried, as Scrapy's get_retry_request() counts in its meta; with
    `WANTED_KEY` how many of these its callback has asked for."""
    times = meta.get(key, 0)
    return times if isinstance(times, int) else 0


def milliseconds(seconds: float) -> int:
    """As the frontier counts delays; rounded up, so that nothing is early."""
    return math.ceil(seconds * 1000)


# Keys that are not safe in an entry, which anybody may have written who can write to Redis

_UNSAFE = (
    "camoufox_",
    "ftp_local_filename",  # written by Scrapy's handler of ftp://
    "impersonate_",  # arguments of curl: files, sockets, file:// URLs
    "nodriver_",
    "playwright_",  # arguments of a browser's start, callbacks, methods that write files
    "pyppeteer_",
    "referrer_policy",  # imported by Scrapy's RefererMiddleware
    "zyte_api_retry_policy",  # imported
)
"""Beginnings of keys by which Scrapy and plugins import code, start processes or open files. Of a
plugin that has several of them all are meant: a later release may have more."""

_BROWSERS = ("camoufox", "nodriver", "playwright")
_SAY_HOW = ("context", "include_page", "page_goto_kwargs", "security_details", "suggested_filename")
_SAFE = frozenset(
    {
        "impersonate_request_bytes",
        "impersonate_response_bytes",
        *(f"{browser}_{key}" for browser in _BROWSERS for key in _SAY_HOW),
    }
)
"""Keys that begin so, and name nothing of that."""


def check_safe(meta: Mapping[Any, Any], listed: Collection[str]) -> None:
    """Raise `Unserializable` for an `unsafe_key`, with the setting that lets it pass."""
    if (key := unsafe_key(meta, listed)) is not None:
        what = ", and is no policy's name" if key == "referrer_policy" else ""
        raise Unserializable(
            f"meta[{key!r:.80}] may name code, processes or files{what}",
            f"list {key!r:.80} in REDISQ_META_KEYS if you trust whoever can write to Redis",
        )


def unsafe_key(meta: Mapping[Any, Any], listed: Collection[str]) -> str | None:
    """A key by which code, processes or files are named, unless it is ``listed``; or None."""
    for key in meta:
        if isinstance(key, str) and key.startswith(_UNSAFE) and key not in _SAFE:
            is_policy = key == "referrer_policy" and _is_policy(meta[key])
            if key not in listed and not is_policy:
                return key
    return None


def _is_policy(value: Any) -> bool:
    """Whether Scrapy looks the referrer policy up by its name: it imports what has a dot."""
    return value is None or (isinstance(value, str) and "." not in value)
