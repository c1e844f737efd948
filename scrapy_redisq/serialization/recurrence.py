"""When a finished request comes again: ``meta["redisq_every"]``; when its URL may be asked for
again: ``meta["redisq_seen_ttl"]``; intervals as people write them.

The first is an interval, or a mapping of ``every``, ``min`` and ``max``. Then the interval adapts
to how often the page changes, and in an entry the mapping also holds what the last answer was known
by.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b, sha1
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace
from scrapy.http import Request, Response

from scrapy_redisq.serialization.identity import of_recurring
from scrapy_redisq.serialization.meta import DELAY_KEY, MAX_DELAY, delay_of

EVERY_KEY, SEEN_TTL_KEY = "redisq_every", "redisq_seen_ttl"
"""In a request's meta."""

INTERVAL_TAKES = 'seconds, or a number with s, m, h, d or w ("90s", "2h", "7d"), up to a year'

SHORTEST = 1.0
"""Seconds between two times."""

SHORTEST_SEEN_TTL = 60.0
"""Seconds. A shorter one may have been meant in days, and requests often wait for longer."""

RATE = 0.5
"""By which an adaptive interval grows, or comes closer to the least one, as in StormCrawler's
AdaptiveScheduler."""

MOST_TAG = 100
"""Bytes of an ETag that is kept."""

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class Answer(NamedTuple):
    """What an answer is known by: a digest of its body (b"": it was 304), ETag, Last-Modified."""

    digest: bytes
    etag: bytes = b""
    modified: bytes = b""

    @classmethod
    def of(cls, response: Response) -> Answer | None:
        """None for one that says nothing of the content."""
        if response.status == 304:
            return cls(b"")
        if not 200 <= response.status < 300:
            return None
        tags = [response.headers.get(name) or b"" for name in ("ETag", "Last-Modified")]
        short = [tag if len(tag) <= MOST_TAG else b"" for tag in tags]
        return cls(blake2b(response.body, digest_size=8).digest(), *short)


class Recurrence(Struct, frozen=True):
    """A request comes again ``every`` so many seconds after it was finished. ``bounds``: the least
    and the most that an adaptive interval may become; ``known``: the last answer's."""

    every: float
    bounds: tuple[float, float] | None = None
    known: Answer | None = None

    @classmethod
    def of(cls, value: Any) -> Recurrence:
        """Of what stands in meta. Raises ValueError with what it takes."""
        if not isinstance(value, Mapping):
            return cls(_interval(value, ""))
        given = {"min": SHORTEST, "max": MAX_DELAY, **value}
        if unknown := given.keys() - {"every", "min", "max", "known"}:
            raise ValueError(f"meta[{EVERY_KEY!r}] has no {min(map(str, unknown))!r:.50}: {_KEYS}")
        if "every" not in given:
            raise ValueError(f"meta[{EVERY_KEY!r}] lacks 'every': {_KEYS}")
        least, every, most = (_interval(given[key], key) for key in ("min", "every", "max"))
        if not least <= every <= most:
            raise ValueError(f"meta[{EVERY_KEY!r}]: takes min <= every <= max, not {value!r:.200}")
        return cls(every, (least, most), _known(given.get("known")))

    def stored(self) -> float | dict[str, Any]:
        """As it stands in the meta of an entry."""
        if self.bounds is None:
            return self.every
        least, most = self.bounds
        told: dict[str, Any] = {"every": self.every, "min": least, "max": most}
        return told if self.known is None else {**told, "known": list(self.known)}

    def after(self, answer: Answer | None) -> Recurrence:
        """The next interval, once ``answer`` has come (None: none that says something)."""
        if self.bounds is None or answer is None:
            return self
        if self.known is None:
            return replace(self, known=answer if answer.digest else None)
        is_same = answer.digest in (b"", self.known.digest)
        least, most = self.bounds
        shorter = self.every - RATE * (self.every - least)
        every = min(most, self.every * (1 + RATE)) if is_same else shorter
        return replace(self, every=every, known=answer if answer.digest else self.known)

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Headers of the next request, b"" for those that it does not have."""
        if self.bounds is None:
            return {}
        _, etag, modified = self.known or Answer(b"")
        return {b"If-None-Match": etag, b"If-Modified-Since": modified}


_KEYS = f"takes a mapping of every, min and max: {INTERVAL_TAKES}"


def seconds_of(value: Any) -> float:
    """The seconds of an interval. Raises ValueError with what it takes."""
    seconds = -1.0
    if isinstance(value, str):
        if found := re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([smhdw]?)", value.strip()):
            seconds = float(found[1]) * _UNITS[found[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = value
    if not 0 <= seconds <= MAX_DELAY:  # before it is a float, which not every integer can be
        raise ValueError(f"{value!r:.100}: takes {INTERVAL_TAKES}")
    return float(seconds)


def seen_ttl_of(value: Any) -> float:
    """The seconds that ``meta["redisq_seen_ttl"]`` says. Raises ValueError with what it takes."""
    return _at_least(SHORTEST_SEEN_TTL, value, f"meta[{SEEN_TTL_KEY!r}]")


WISHES: dict[str, Callable[[Any], Any]] = {
    DELAY_KEY: delay_of,
    EVERY_KEY: Recurrence.of,
    SEEN_TTL_KEY: seen_ttl_of,
}
"""Keys of meta by which a request says how the frontier is to treat it, and their checks."""


def read_wishes(
    request: Request, refuse: Callable[[Request, str, ValueError], None] | None = None
) -> tuple[Request, dict[str, Any]]:
    """The request as it is kept, and what its meta says so. Later copies of its meta must not
    inherit its delay. Raises ValueError with what a key takes; or ``refuse`` is told of that, and
    the request goes on without the key."""
    wishes: dict[str, Any] = {}
    for key, check in WISHES.items():
        if key not in request.meta:
            continue
        try:
            wishes[key] = check(request.meta[key])
        except ValueError as error:
            if refuse is None:
                raise
            refuse(request, key, error)
        if key == DELAY_KEY or key not in wishes:
            meta = {name: value for name, value in request.meta.items() if name != key}
            request = request.replace(meta=meta)
    return request, wishes


def known_by_fingerprint(
    fingerprint: bytes, wishes: Mapping[str, Any], run: str = ""
) -> tuple[bytes, bytes | None]:
    """What a filtered request with these ``wishes`` is known by: in the place of its fingerprint,
    and, if it comes again, an identity that outlasts what was seen. ``run``: in that run alone."""
    known_by = sha1(run.encode() + fingerprint).digest() if run else fingerprint
    if ttl := wishes.get(SEEN_TTL_KEY):
        known_by = of_period(known_by, ttl)
    return known_by, of_recurring(fingerprint) if EVERY_KEY in wishes else None


def of_period(known_by: bytes, ttl: float) -> bytes:
    """A fingerprint or identity with the number of its period of ``ttl`` seconds, by this machine's
    clock: another one each period. Periods of different ones begin at different times."""
    begin = int.from_bytes(known_by[:4], "big") / 2**32
    return sha1(b"%d " % math.floor(time.time() / ttl + begin) + known_by).digest()


def _interval(value: Any, key: str) -> float:
    where = f"meta[{EVERY_KEY!r}]" + (f"[{key!r}]" if key else "")
    return _at_least(SHORTEST, value, where)


def _at_least(least: float, value: Any, where: str) -> float:
    try:
        seconds = seconds_of(value)
    except ValueError as error:
        raise ValueError(f"{where} = {error}") from None
    if seconds < least:
        raise ValueError(f"{where} = {value!r:.100}: takes {least:g} seconds at least")
    return seconds


def _known(value: Any) -> Answer | None:
    if value is None:
        return None
    parts = value if isinstance(value, (list, tuple)) else ()
    if len(parts) != 3 or not all(isinstance(part, bytes) for part in parts):
        raise ValueError(f"meta[{EVERY_KEY!r}]['known'] is this project's own")
    return Answer(*parts)
