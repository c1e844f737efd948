"""Who may ask and change what.

What has to hold, and by what it does:

- Nobody else's page reads or changes anything. It cannot read an answer of another origin (there
  are no CORS headers), what it sends is refused (Origin, Sec-Fetch-Site), and so is a page that
  made its own name lead here (Host: DNS rebinding). A change needs a header that no form can send.
- On another address than a loopback one whoever asks needs the token, in a header: never in a URL,
  which ends up in logs, never in a cookie, which a browser sends by itself.
- On a loopback address anybody on this machine may look, as they may at Redis there. To change
  something takes a token that this process draws and gives to its own pages.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from scrapy_redisq.errors import RedisqError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DATA = ("/api/", "/metrics", "/scale/")
"""Where there is something to read; everything else is pages, which hold no data."""

MOST_BODY = 1_000_000
"""Bytes of a POST."""

SHORTEST_TOKEN = 16

SESSION = "/api/session"
"""Where a page asks whether it needs a token."""

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
    """Raised when the dashboard would be open to anybody. The message says what to give."""


@dataclass(frozen=True)
class Rules:
    """How one dashboard is guarded. ``token`` is "" if none was given, which only a loopback
    address allows; ``hosts`` are names by which it may be reached beside addresses."""

    token: str = field(default="", repr=False)
    read_only: bool = False
    hosts: frozenset[str] = frozenset()
    drawn: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """What stands for the token where none was given."""

    @classmethod
    def of(cls, host: str, token: str, *, read_only: bool, hosts: frozenset[str]) -> Rules:
        """Raises `Refused` for an address that needs a token, and for one that can be guessed."""
        if not token and not is_loopback(host):
            raise Refused(
                f"{host} can be reached from other machines: give a token (--token-file FILE, or "
                "REDISQ_DASHBOARD_TOKEN), or --bind to 127.0.0.1"
            )
        if token and len(token) < SHORTEST_TOKEN:
            raise Refused(f"the token has less than {SHORTEST_TOKEN} characters")
        return cls(token, read_only, frozenset(name.lower() for name in hosts))

    def session(self) -> dict[str, Any]:
        """What a page of this dashboard has to know first."""
        return {
            "needs_token": bool(self.token),
            "token": None if self.token or self.read_only else self.drawn,
            "read_only": self.read_only,
        }

    def refusal(self, request: web.Request) -> web.HTTPException | None:
        """Why ``request`` gets no answer; None: it does."""
        # Not request.host, which looks for a name of this machine where none is given.
        host = request.headers.get("Host", "")
        if not self.is_own_host(host):
            return web.HTTPMisdirectedRequest(text=f"this dashboard is not {host!r}: see --host")
        if not request.path.startswith(DATA):
            return None  # the pages hold no data
        if not self.is_own_page(request):
            return web.HTTPForbidden(text="asked by a page of another origin")
        is_change = request.method not in ("GET", "HEAD")
        if is_change and self.read_only:
            return web.HTTPForbidden(text="this dashboard is read-only")
        if request.path == SESSION and not is_change:
            return None
        if (self.token or is_change) and not self._has_token(request):
            return web.HTTPUnauthorized(
                text="the token is missing or wrong", headers={"WWW-Authenticate": "Bearer"}
            )
        if is_change and request.content_type != "application/json":
            return web.HTTPUnsupportedMediaType(text="takes application/json")
        if (request.content_length or 0) > MOST_BODY:
            return web.HTTPRequestEntityTooLarge(MOST_BODY, request.content_length or 0)
        return None

    def is_own_host(self, host: str) -> bool:
        """Whether no name of a stranger leads here: an address cannot be given to a stranger."""
        name = host
        try:
            name = urlsplit(f"//{host}").hostname or ""
            address = ipaddress.ip_address(name)
        except ValueError:  # no address, or nothing that could be asked
            return name == "localhost" or name in self.hosts
        return not address.is_unspecified

    @staticmethod
    def is_own_page(request: web.Request) -> bool:
        """Whether the page that asks is of this dashboard, or it is no page at all."""
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("Origin")
        return origin is None or origin.partition("://")[2] == request.host

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        right = self.token or self.drawn
        same = hmac.compare_digest(given.strip().encode(errors="replace"), right.encode())
        return same and scheme.lower() == "bearer"


def is_loopback(host: str) -> bool:
    """Whether nobody reaches it but from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def guarded(rules: Rules) -> Any:
    """The middleware that holds ``rules``."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if refusal := rules.refusal(request):
            raise refusal
        return await handler(request)

    return guard


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """The headers of every answer, errors and streams too."""
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
