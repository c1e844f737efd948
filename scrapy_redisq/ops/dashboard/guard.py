"""The rules for questions and changes: see docs/operate/dashboard.md.

No page of another origin reads or changes anything: there are no CORS headers, and Origin,
Sec-Fetch-Site and Host are looked at. Whoever asks needs the token, also on a loopback address,
which all users of the machine reach; it travels in a header, which no form can send.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from scrapy_redisq.errors import RedisqError
from scrapy_redisq.ops.serving import Handler

DATA = ("/api/", "/metrics", "/scale/")
"""Where there is something to read; everything else is pages, which hold no data."""

MOST_BODY = 1_000_000
"""Bytes of a POST."""

SHORTEST_TOKEN = 16

SESSION = "/api/session"
"""Where a page asks what it may do; needs no token."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class Refused(RedisqError):
    """Raised for a token that can be guessed. The message says what to give."""


@dataclass(frozen=True)
class Rules:
    """How one dashboard is guarded. ``hosts`` are names by which it may be reached beside
    addresses. Raises `Refused`."""

    token: str = field(repr=False)
    read_only: bool = False
    hosts: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        # Headers cannot hold others.
        is_plain = self.token.isascii() and self.token.isprintable() and " " not in self.token
        if len(self.token) < SHORTEST_TOKEN or not is_plain:
            raise Refused(
                f"a token has at least {SHORTEST_TOKEN} characters: letters, digits, signs of ASCII"
            )

    def check(self, request: web.Request) -> None:
        """Raises what ``request`` is to be told if it gets no answer."""
        # Not request.host, which looks for a name of this machine where none is given.
        host = request.headers.get("Host", "")
        if not self._is_own_host(host):
            raise web.HTTPMisdirectedRequest(text=f"this dashboard is not {host!r}: see --host")
        if not request.path.startswith(DATA):
            return  # the pages hold no data
        if not self._is_own_page(request):
            raise web.HTTPForbidden(text="asked by a page of another origin")
        is_change = request.method not in ("GET", "HEAD")
        if is_change and self.read_only:
            raise web.HTTPForbidden(text="this dashboard is read-only")
        if request.path == SESSION and not is_change:
            return
        if not self._has_token(request):
            raise web.HTTPUnauthorized(
                text="the token is missing or wrong", headers={"WWW-Authenticate": "Bearer"}
            )
        if is_change and request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="takes application/json")
        if (request.content_length or 0) > MOST_BODY:
            raise web.HTTPRequestEntityTooLarge(MOST_BODY, request.content_length or 0)

    def _is_own_host(self, host: str) -> bool:
        """Whether no name of a stranger leads here: an address cannot be given to a stranger."""
        name = host
        try:
            name = urlsplit(f"//{host}").hostname or ""
            address = ipaddress.ip_address(name)
        except ValueError:  # no address, or nothing that could be asked
            return name == "localhost" or name in self.hosts
        return not address.is_unspecified

    @staticmethod
    def _is_own_page(request: web.Request) -> bool:
        """Whether the page that asks is of this dashboard, or it is no page at all."""
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("Origin")
        return origin is None or origin.partition("://")[2] == request.host

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(errors="replace"), self.token.encode())
        return same and scheme.lower() == "bearer"


def guarded(rules: Rules) -> Any:
    """The middleware that holds ``rules``."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        rules.check(request)
        return await handler(request)

    return guard


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """The headers of every answer, errors too."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
