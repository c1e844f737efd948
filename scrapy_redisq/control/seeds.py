"""Requests of producers: URLs, fields or requests become entries that a worker can take.

Knows Scrapy's requests, but needs no spider: callbacks are given by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scrapy.http import Request
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.request import fingerprint as scrapy_fingerprint

from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.names import slot_name
from scrapy_redisq.serialization.identity import of_nowhere
from scrapy_redisq.serialization.meta import DELAY_KEY
from scrapy_redisq.serialization.recurrence import (
    EVERY_KEY,
    Recurrence,
    known_by_fingerprint,
    read_wishes,
    seconds_of,
)
from scrapy_redisq.serialization.request_fields import request_from_fields
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.serialization.value_classes import ValueClasses
from scrapy_redisq.settings.settings import RedisqSettings

NO_META: Mapping[str, Any] = {}

DEFAULT_FINGERPRINTER = "scrapy.utils.request.RequestFingerprinter"


@dataclass(frozen=True)
class Seed:
    """A request to be pushed. ``fingerprint`` is None for one that is not to be filtered."""

    slot: str
    priority: int
    fingerprint: bytes | None
    entry: bytes = field(repr=False)
    delay: float = 0.0
    """Seconds, from ``meta["redisq_delay"]``."""
    identity: bytes | None = None
    """Identity of an unfiltered request, or of one that comes again."""
    also: bytes | None = None
    """Another fingerprint, which is only recorded."""


def times(after: str | float, every: str | float | Mapping[str, Any] | None) -> dict[str, Any]:
    """Meta of a request that waits for the time ``after``, and comes again ``every`` so often.
    Raises ValueError with what these take."""
    meta: dict[str, Any] = {}
    if after != 0:
        meta[DELAY_KEY] = seconds_of(after)
    if every is not None:
        meta[EVERY_KEY] = Recurrence.of(every).stored()
    return meta


class NamedRequest(NamedTuple):
    """A request whose callbacks are given by name. ``identity``: of 16 bytes, by which it is known
    if it is not to be filtered."""

    request: Request
    callback: str | None
    errback: str | None
    identity: bytes


class SeedReader:
    """Makes seeds of what producers have, as the ``settings`` allow. ``fingerprint`` stands for the
    crawl's fingerprinter; None: Scrapy's."""

    def __init__(
        self,
        settings: RedisqSettings | None = None,
        fingerprint: Callable[[Request], bytes] | None = None,
    ) -> None:
        settings = settings or RedisqSettings.read({})
        self._fingerprint = fingerprint
        self._serializer = Serializer(
            None,
            max_bytes=settings.max_entry_bytes,
            schemes=settings.schemes,
            request_classes=settings.request_classes,
            value_classes=ValueClasses(settings.value_classes),
            meta_keys=settings.meta_keys,
        )

    @property
    def has_own_fingerprinter(self) -> bool:
        """Whether the crawl has another one than Scrapy's."""
        return self._fingerprint is not None

    def fingerprint_of(self, request: Request) -> bytes:
        """By the crawl's fingerprinter."""
        return (self._fingerprint or scrapy_fingerprint)(request)

    def check_fingerprinter(self, fingerprinter: str) -> None:
        """Raise `SettingError` if the crawl's fingerprinter, whose name comes from Redis and is not
        imported, is not the one used here."""
        if self._fingerprint is None and fingerprinter != DEFAULT_FINGERPRINTER:
            raise SettingError(
                "REQUEST_FINGERPRINTER_CLASS",
                DEFAULT_FINGERPRINTER,
                f"{fingerprinter!r} for this frontier: push from inside the project, or give "
                f"Frontier.from_url its method as `fingerprint`",
            )

    def read(
        self,
        item: str | Mapping[str, Any] | Request | NamedRequest,
        meta: Mapping[str, Any] = NO_META,
    ) -> Seed:
        """The seed of a URL, of a mapping of fields, or of a request without callbacks of its
        own. ``meta`` is added to its own, which goes over it.

        Raises `RedisqError`, ValueError or TypeError with what is wrong with it, and whatever a
        fingerprinter of the project raises.
        """
        callback = errback = own_identity = None
        if isinstance(item, NamedRequest):
            request, callback, errback, own_identity = item
        elif isinstance(item, (str, Mapping)):
            fields = {"url": item} if isinstance(item, str) else item
            request, callback, errback = request_from_fields(fields)
        elif isinstance(item, Request):
            request = item
        else:
            raise TypeError(f"takes a URL, a mapping of fields or a Request, not {item!r:.100}")
        if meta:
            request = request.replace(meta={**meta, **request.meta})
        request, wishes = read_wishes(request)
        fingerprint = self.fingerprint_of(request)
        if not isinstance(fingerprint, bytes):
            raise TypeError(f"its fingerprint is {fingerprint!r:.100}, no bytes")
        stored = identity = known_by = None
        if request.dont_filter:
            stored = identity = own_identity or of_nowhere(fingerprint, request)
        else:
            known_by, identity = known_by_fingerprint(fingerprint, wishes)
        entry = self._serializer.dumps(request, stored, callback=callback, errback=errback)
        slot = request.meta.get("download_slot")
        if slot is None:  # as Scrapy's downloader sees it
            slot = urlparse_cached(request).hostname or ""
        return Seed(
            slot=slot_name(str(slot)),
            priority=int(request.priority),
            fingerprint=known_by,
            entry=entry,
            delay=wishes.get(DELAY_KEY, 0.0),
            identity=identity,
            also=fingerprint if known_by not in (None, fingerprint) else None,
        )
