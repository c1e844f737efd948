"""A deterministic local site in a thread, which logs every hit.

Pages are given by a function ``page(path) -> Answer | str | None``; None is a 404.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from lab.in_thread import InThread
from lab.servers import free_port

Headers = dict[str, str]


@dataclass
class Answer:
    """One response: body, status, headers, seconds that it takes, and what it waits for."""

    body: str | bytes = ""
    status: int = 200
    headers: Headers = field(default_factory=dict)
    delay: float = 0.0
    until: threading.Event | None = None
    content_type: str = "text/html; charset=utf-8"


@dataclass(eq=False)
class Hit:
    """One request that reached the site, ``at`` a time.monotonic(); ``started`` is when its worker
    began it, where it says so (X-Started), ``ended`` just before its answer was sent, or when its
    connection was lost; until then the ``status`` is 0."""

    at: float
    path: str
    host: str
    agent: str
    started: float
    method: str = "GET"
    headers: Headers = field(default_factory=dict)
    body: bytes = b""
    ended: float = math.inf
    status: int = 0


def address(host: int) -> str:
    """The IP address of a host, which is its slot, too."""
    return f"127.0.0.{host + 1}"


class Site(InThread):
    """An HTTP/1.1 server on 127.0.0.1 to 127.0.0.``hosts``; a context manager. ``port`` 0 takes a
    free one."""

    def __init__(
        self, page: Callable[[str], Answer | str | None], hosts: int = 1, port: int = 0
    ) -> None:
        super().__init__()
        self.page = page
        self.port = port
        self._addresses = [address(host) for host in range(hosts)]
        self.hits: list[Hit] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def urls(self, hosts: int) -> str:
        """The URLs of its first hosts, as the spider ``hosts`` takes them."""
        return " ".join(f"http://{address(host)}:{self.port}" for host in range(hosts))

    def answer(self, hit: Hit) -> Answer | str | None:
        """For sites that look at more than the path."""
        return self.page(hit.path)

    def counts(self) -> Counter[str]:
        """How often each path was fetched."""
        return Counter(hit.path for hit in self.hits)

    def starts(self, pages: int | None = None) -> dict[str, list[float]]:
        """When requests to each host were begun, robots.txt apart.

        With ``pages`` of each host those of the first run: a worker that comes when the others have
        finished crawls them again.
        """
        at: dict[str, list[float]] = {}
        for hit in self.hits:
            if hit.path != "/robots.txt":
                at.setdefault(hit.host.partition(":")[0], []).append(hit.started)
        if pages is not None:
            assert {len(times) % pages for times in at.values()} == {0}, at
        return {host: sorted(times)[:pages] for host, times in at.items()}

    async def listen(self) -> list[asyncio.Server]:
        self.port = self.port or free_port()
        return [await asyncio.start_server(self.accepted, self._addresses, self.port)]

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        goes_on = True
        while goes_on and (line := await reader.readline()):
            goes_on = await self._answer(line, time.monotonic(), reader, writer)

    async def _answer(
        self, line: bytes, at: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; -> does the client keep the connection for a further one?"""
        method, path, version = line.decode().split()
        headers: Headers = {}
        while header := (await reader.readline()).strip():
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        started = float(headers.get("x-started", at))
        host, agent = headers.get("host", ""), headers.get("user-agent", "")
        hit = Hit(at, path, host, agent, started, method, headers, body)
        self.hits.append(hit)
        answer = self.answer(hit)
        if answer is None:
            answer = Answer("not found", 404)
        elif isinstance(answer, str):
            answer = Answer(answer)
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                # While it waits, a client sends nothing, and reads as ended if it goes away.
                if answer.delay and not await asyncio.wait_for(reader.read(1), answer.delay):
                    raise ConnectionResetError
            while answer.until is not None and not answer.until.is_set():
                await asyncio.sleep(0.02)
        finally:
            hit.ended = time.monotonic()
        hit.status = answer.status
        content = answer.body if isinstance(answer.body, bytes) else answer.body.encode()
        head = [f"HTTP/1.1 {answer.status} X", f"Content-Type: {answer.content_type}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        head += [f"Content-Length: {len(content)}", "", ""]
        if method == "HEAD":
            content = b""
        writer.write("\r\n".join(head).encode() + content)
        await writer.drain()
        return version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"


def linked_pages(
    n: int, links: int = 3, delay: float = 0.0, base: Callable[[int], str] = lambda number: ""
) -> Callable[[str], Answer | None]:
    """``n`` pages /0 … /n-1, each linked from at least ``links`` others; others are 404s. ``base``
    says what stands before the path of a page, where a link leads to it."""

    def page(path: str) -> Answer | None:
        name = path.partition("?")[0].strip("/") or "0"
        if not name.isdigit() or int(name) >= n:
            return None
        number = int(name)
        targets = {(number * 7 + 31 * j * j + j + 1) % n for j in range(links)}
        targets |= {(number + 1) % n, (number * 2 + 1) % n, (number * 2 + 2) % n}
        anchors = "".join(
            f'<a href="{base(target)}/{target}">{target}</a>' for target in sorted(targets)
        )
        return Answer(f"<html><title>{number}</title>{anchors}</html>", delay=delay)

    return page
