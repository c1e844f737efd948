"""An HTTP server for Prometheus and autoscalers: ``/metrics``, ``/scale/NAME``, ``/healthz``.

It changes nothing, and tells no URL and no host.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis

from scrapy_redisq.control import Frontier
from scrapy_redisq.control.names import frontier_names
from scrapy_redisq.errors import FrontierError, RedisqError, SettingError
from scrapy_redisq.frontier.trouble import TROUBLE
from scrapy_redisq.ops.metrics.exposition import CONTENT_TYPE, Exposition
from scrapy_redisq.ops.metrics.scale import scale
from scrapy_redisq.server.connection import Server

RELIST = 30.0
"""Seconds after which it is looked for new frontiers again."""

MOST_KNOWN = 1_000
"""Frontiers that are told of."""

SILENT = 10.0
"""Seconds after which a client that has not yet said what it asks for is left."""

KEPT = 15.0
"""Seconds for which the last metrics are given to those who ask while somebody else is looking."""

MOST_ASKING = 64
"""Connections at a time; the others are answered with 503."""


class Busy(RedisqError):
    """Raised when there is nothing to say soon."""


class Known:
    """The frontiers of a server. All of them share its connections."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = server.client()
        self._frontiers: list[Frontier] = []
        self._listed = -RELIST
        self._lock = threading.Lock()

    def close(self) -> None:
        self._client.close()

    def all(self) -> tuple[list[Frontier], bool]:
        """-> those that there are, and whether they could be listed."""
        with self._lock:
            if time.monotonic() - self._listed >= RELIST:
                try:
                    names, _ = frontier_names(self._client)
                except (redis.RedisError, RedisqError, OSError):
                    return self._frontiers, False
                self._listed = time.monotonic()
                self._frontiers = [self.one(name) for name in names[:MOST_KNOWN]]
            return self._frontiers, True

    def one(self, name: str) -> Frontier:
        """The frontier called ``name``, whether it is there or not. Raises `SettingError`."""
        return Frontier(self._server, name, client=self._client)


class Scraped:
    """``/metrics`` of all frontiers of a server, which is looked at once at a time: beside a Redis
    that hangs those who ask take no thread each."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._exposition = Exposition()
        self._looking = threading.Lock()
        self._last = b""
        self._last_at = -KEPT

    def text(self) -> bytes:
        """What there is to say; the last, if it is no older than `KEPT`, while somebody else is
        looking. Raises `Busy` if there is none."""
        if not self._looking.acquire(blocking=False):
            if time.monotonic() - self._last_at < KEPT:
                return self._last
            raise Busy("Redis is being asked, and does not answer: ask later")
        try:
            frontiers, up = self._known.all()
            at = time.monotonic()
            self._last, self._last_at = self._exposition.text(frontiers, up=up), at
            return self._last
        finally:
            self._looking.release()


class Exporter:
    """Listens at ``host`` and ``port`` (0: a free one). Raises OSError if it cannot."""

    def __init__(self, server: Server, host: str, port: int) -> None:
        self._known = Known(server)
        self._scraped = Scraped(self._known)
        handler = type("Handler", (_Handler,), {"answer": staticmethod(self.answer)})
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = type("Listener", (_Listener,), {"address_family": family})
        self._listener: ThreadingHTTPServer = listener((host, port), handler)
        self.port: int = self._listener.server_address[1]

    def run(self) -> None:
        """Answer until `stop`, or an exception such as that of a signal's handler."""
        self._listener.serve_forever()

    def stop(self) -> None:
        """From another thread."""
        self._listener.shutdown()

    def close(self) -> None:
        self._listener.server_close()
        self._known.close()

    def answer(self, target: str) -> tuple[int, str, bytes]:
        """-> status, content type and body for the path and query of a request."""
        try:
            parts = urlsplit(target)
        except ValueError as error:
            return 400, "text/plain", f"{error}\n".encode()
        if parts.path == "/metrics":
            try:
                return 200, CONTENT_TYPE, self._scraped.text()
            except Busy as busy:
                return 503, "text/plain", f"{busy}\n".encode()
        if parts.path == "/healthz":
            return 200, "text/plain", b"ok\n"
        if parts.path.startswith("/scale/"):
            return self._scale(unquote(parts.path.removeprefix("/scale/")), parts.query)
        return 404, "text/plain", b"/metrics, /scale/NAME, /healthz\n"

    def _scale(self, name: str, query: str) -> tuple[int, str, bytes]:
        try:
            told = scale(self._known.one(name), dict(parse_qsl(query, keep_blank_values=True)))
        except (SettingError, ValueError) as error:
            return 400, "application/json", _json({"error": str(error)})
        except (FrontierError, redis.RedisError, *TROUBLE):
            # Whoever asks keeps the number of workers that there are.
            return 503, "application/json", _json({"error": "the frontier cannot be read"})
        return 200, "application/json", _json(told)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


class _Listener(ThreadingHTTPServer):
    """A thread for each connection, but not for any number of them. Where there is none left, the
    connection that has been without a request for longest goes."""

    request_queue_size = 128  # with socketserver's 5 a burst of connections waits for a second

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.Semaphore(MOST_ASKING)
        self._silent: dict[Any, float] = {}
        """Connections that have not yet said what they ask for, and since when; oldest first."""
        super().__init__(*arguments)

    def service_actions(self) -> None:
        """Now and then: to who has been asking for too long, however little comes at a time, nobody
        listens any more."""
        late = time.monotonic() - SILENT
        for request, came in self._silent.copy().items():
            if came < late:
                self._hang_up(request)

    @staticmethod
    def _hang_up(request: Any) -> None:
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RD)

    def asked(self, request: Any) -> None:
        """It has said what it asks for, and is answered."""
        self._silent.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Of clients that went away nothing is said."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False) or self._has_made_room():
            self._silent[request] = time.monotonic()
            try:
                super().process_request(request, client_address)
            except (RuntimeError, MemoryError):  # the machine has no thread for it
                self._leave(request)
                raise
        else:
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.0 503 Too many ask\r\n\r\n")
            self.shutdown_request(request)

    def _has_made_room(self) -> bool:
        """Whether a silent connection went, and left its thread."""
        for oldest in list(self._silent)[:1]:
            self._hang_up(oldest)
            return self._free.acquire(timeout=1)
        return False

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, request: Any) -> None:
        self.asked(request)
        self._free.release()


class _Handler(BaseHTTPRequestHandler):
    """Hands requests on to the exporter."""

    answer: Callable[[str], tuple[int, str, bytes]]
    timeout = SILENT
    server_version, sys_version = "scrapy-redisq", ""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Listener)
        self.server.asked(self.connection)
        status, content_type, body = self.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: it would be a line each 15 s."""
