"""A request that Scrapy hands in: who asks for it, what its meta wishes, what it is known by.

A filtered request is known by its fingerprint. Each other one has an identity: of ``start()``, of
its page, or of its line in a feed (see `scrapy_redisq.serialization.identity`).
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from typing import Any, NamedTuple

from msgspec import Struct
from scrapy.http import Request

from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.serialization.identity import of_child, of_nowhere, of_start
from scrapy_redisq.serialization.meta import SESSION_KEY, retry_times
from scrapy_redisq.serialization.recurrence import (
    EVERY_KEY,
    SEEN_TTL_KEY,
    known_by_fingerprint,
    of_period,
)
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.page import KeptPage, Output, Page


class Asked(Struct):
    """A request that is taken in: as it was ``given``, and as it is stored.

    ``page`` asks for it, ``output`` is that page's, or that of ``start()``. ``own`` is its
    fingerprint. ``fed``: its identity by the line of a feed that asks for it. ``asked_again``:
    another fetch of its page asks for it, too. ``delay``: seconds that it waits.
    """

    given: Request
    request: Request
    wishes: dict[str, Any]
    page: Page | None
    output: Output
    slot: str
    own: bytes
    filtered: bool
    of_start: bool
    asked_again: bool
    delay: float
    fed: bytes | None

    @property
    def holder(self) -> Page | None:
        """The page of the frontier that asks for it, or for the kept request that asks for it."""
        return self.page.holder if isinstance(self.page, KeptPage) else self.page

    @property
    def comes_again(self) -> bool:
        """Whether its meta wishes to have it fetched again and again."""
        return EVERY_KEY in self.wishes

    def shares_session(self, page: Page | None) -> bool:
        """Whether it runs where ``page`` does: both name the same session."""
        session = self.request.meta.get(SESSION_KEY)
        theirs = page.request.meta.get(SESSION_KEY) if page is not None else None
        return session is not None and bool(session == theirs)

    @property
    def known_here(self) -> bytes | None:
        """What it is known by if it stays in this process; None: it is not filtered. Another
        session may ask for the same URL, and have another answer."""
        if not self.filtered:
            return None
        session = self.request.meta.get(SESSION_KEY)
        return self.own if session is None else sha1(f"{session!r} ".encode() + self.own).digest()


def is_tried_again(request: Request, page: Page) -> bool:
    """Whether ``request`` is tried once more often than its page."""
    return retry_times(request.meta) > retry_times(page.request.meta)


def telling_url(request: Request) -> str:
    """The URL if it says all that Scrapy's fingerprint does, else ""."""
    tells = (
        not request.dont_filter
        and request.method == "GET"
        and not request.body
        and request.meta.keys().isdisjoint(("verbatim_url", SESSION_KEY, SEEN_TTL_KEY))
    )
    # Fingerprints leave the fragment out, and real pages link to many.
    return request.url.partition("#")[0] if tells else ""


class KnownBy(NamedTuple):
    """See `scrapy_redisq.frontier.operations.Enqueue`."""

    fingerprint: bytes | str | None
    also: bytes | str | None
    identity: bytes | None
    asked: int


def known_by(
    one: Asked,
    settings: RedisqSettings,
    run_session: RunSession,
    identity_of_page: Callable[[Page], bytes],
    worker: bytes,
) -> KnownBy:
    """What ``one`` is known by. ``worker``: random bytes of this one, of which its unfiltered start
    requests are with REDISQ_SAME_START = False."""
    encode, own = run_session.seen.encode, one.own
    if one.filtered:
        # Start requests are fetched once in each run, whatever earlier runs have seen.
        run = run_session.joined.run if one.of_start and settings.keep_seen else ""
        known, identity = known_by_fingerprint(own, one.wishes, run)
        also = encode(own) if known != own else None
        return KnownBy(encode(known), also, identity, calls.STARTS if identity else 0)
    if one.of_start:
        alone = b"" if settings.same_start else worker
        identity = of_start(own, one.request, one.output.repeats, own=alone)
        # Links to it are duplicates. A start request with marks (cookies, say) hides none.
        also = encode(own) if identity == own else None
        return KnownBy(None, also, identity, calls.STARTS)
    if one.page is None:
        return KnownBy(None, None, one.fed or of_nowhere(own, one.request), calls.RECENT)
    parent, retries, asked = b"", 0, calls.STARTS
    # Of any page, or each fetch of its page would begin another series.
    if not one.comes_again:
        parent, asked = identity_of_page(one.page), calls.RECENT
        retries = one.page.stored.wanted
        # What a page asks for is new each time that its URL may be fetched again.
        if ttls := [ttl for ttl in (settings.seen_ttl, one.page.seen_ttl) if ttl]:
            parent = of_period(parent, min(ttls))
    headers, repeats = one.page.request.headers, one.output.repeats
    identity = of_child(parent, own, one.request, repeats, headers=headers, retries=retries)
    return KnownBy(None, None, identity, asked)
