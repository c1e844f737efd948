"""The bookshop's web server: HTTP/1.1 with keep-alive on asyncio, and a log of every request.

``python -m shop_site.server --port 8000`` serves it until Ctrl-C, for a look with a browser or for
crawls by hand. Beside the shop there are ``/__log`` (JSON: one ``[time, path, status, agent]`` per
request) and ``/__stats``, which are not logged themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import threading
import time
from collections import Counter
from types import TracebackType
from typing import NamedTuple

from shop_site.catalogue import Catalogue
from shop_site.html import render

_REASONS = {200: "OK", 301: "Moved Permanently", 404: "Not Found", 405: "Method Not Allowed"}
_MAX_HEAD = 65_536  # bytes of a request's head, asyncio's own default


class Hit(NamedTuple):
    """One request that reached the shop. ``time`` is in seconds since the epoch."""

    time: float
    path: str
    status: int
    agent: str


class ShopServer:
    """Serves a `Catalogue` from a thread of its own, as a context manager.

    ``delay`` seconds pass before each answer, as on a real site; requests are logged in ``hits``
    when they arrive, so that one whose client is killed meanwhile counts. ``port`` 0 takes a free
    one. OSError if the port is taken.
    """

    def __init__(
        self, shop: Catalogue, *, host: str = "127.0.0.1", port: int = 0, delay: float = 0.0
    ) -> None:
        self.shop = shop
        self.delay = delay
        self.hits: list[Hit] = []
        self._host = host
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shop", daemon=True)

    @property
    def url(self) -> str:
        """The shop's address without a slash at the end, once the server has started."""
        return f"http://{self._host}:{self._port}"

    def __enter__(self) -> ShopServer:
        self._thread.start()
        try:
            self._server = asyncio.run_coroutine_threadsafe(
                asyncio.start_server(self._connected, self._host, self._port, limit=_MAX_HEAD),
                self._loop,
            ).result()
        except BaseException:
            self._end_loop()
            raise
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # Clients come and go as they like; a client that is killed leaves in mid-request.
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                while await self._answer_one(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the server is closing; swallowed so that asyncio does not log it as an error
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read one request and answer it; whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *header_lines = head.split("\r\n")
        method, target, version = request_line.split(" ", 2)
        headers = {}
        for line in header_lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        path = target.partition("?")[0]
        status, extra, body = self._respond(method, path)
        if not path.startswith("/__"):
            self.hits.append(Hit(time.time(), path, status, headers.get("user-agent", "")))
            if self.delay:
                await asyncio.sleep(self.delay)
        goes_on = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        writer.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\n{extra}Content-Length: {len(body)}\r\n"
            f"Connection: {'keep-alive' if goes_on else 'close'}\r\n\r\n".encode()
        )
        if method != "HEAD":
            writer.write(body)
        await writer.drain()
        return goes_on

    def _respond(self, method: str, path: str) -> tuple[int, str, bytes]:
        """Status, headers of its own and body of the answer."""
        page = "Content-Type: text/html; charset=utf-8\r\n"
        if method not in {"GET", "HEAD"}:
            return 405, "Allow: GET, HEAD\r\n", b""
        if path in self.shop.pages:
            return 200, page, render(self.shop, path)
        if target := self.shop.redirects.get(path):
            return 301, f"Location: {target}\r\n", b""
        if path == "/robots.txt":
            return 200, "Content-Type: text/plain\r\n", b"User-agent: *\nAllow: /\n"
        if path == "/__log":
            return 200, "Content-Type: application/json\r\n", json.dumps(self.hits).encode()
        if path == "/__stats":
            return 200, "Content-Type: application/json\r\n", json.dumps(self.stats()).encode()
        return 404, page, b"<!doctype html><title>Not found</title><h1>Not found</h1>"

    def stats(self) -> dict[str, int]:
        """Counts of the log so far: requests, distinct pages, and paths asked for repeatedly."""
        times = Counter(hit.path for hit in self.hits)
        return {
            "requests": len(self.hits),
            "pages": sum(path in self.shop.pages for path in times),
            "of_pages": len(self.shop.pages),
            "repeated": sum(count > 1 for count in times.values()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the example bookshop until Ctrl-C.")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000; 0: a free one")
    parser.add_argument("--pages", type=int, default=2000, help="size of the shop")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    options = parser.parse_args()
    shop = Catalogue(options.pages)
    with ShopServer(shop, port=options.port, delay=options.delay) as server:
        print(f"{len(shop.pages):,} pages at {server.url}/ (Ctrl-C ends)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
        print(f"\n{json.dumps(server.stats())}")


if __name__ == "__main__":
    main()
