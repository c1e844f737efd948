"""A site in a process of its own that is never the bottleneck: answers made in advance.

``python -m benchmarks.site --pages 1500 --links 50`` or ``… --folder DIR --pages 1500`` prints its
port. ``/-/hits`` is its log, ``/-/forget`` empties it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import posixpath
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter, deque
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit

INDEX = "/index.html"
HREF = re.compile(rb"""(<a\b[^>]*?\s)href\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.I | re.S)
WORDS = ("crawl", "page", "link", "frontier", "lease", "slot", "queue", "worker", "some", "words")


class Site:
    """The process, from outside; a context manager. ``delay``: seconds that each answer takes."""

    def __init__(
        self, *, pages: int, links: int = 50, folder: Path | None = None, delay: float = 0.0
    ) -> None:
        command = [sys.executable, "-m", "benchmarks.site", "--pages", str(pages)]
        command += ["--links", str(links), "--delay", str(delay)]
        if folder is not None:
            command += ["--folder", str(folder)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline().split()
        self.port, self.pages = int(told[0]), int(told[1])
        self.start_url = f"http://127.0.0.1:{self.port}{INDEX}"

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def hits(self) -> list[tuple[float, str]]:
        """(seconds since 1970, path) of each request since the log was emptied."""
        return [(at, path) for at, path in json.loads(self._ask("hits"))]

    def forget(self) -> None:
        """Empty the log."""
        self._ask("forget")

    def _ask(self, what: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/{what}") as answer:
            body: bytes = answer.read()
            return body


def twice(hits: list[tuple[float, str]]) -> int:
    """Fetches of pages that had been fetched before."""
    return sum(count - 1 for count in Counter(path for _, path in hits).values())


# What it serves


def generated(pages: int, links: int) -> dict[str, bytes]:
    """``pages`` pages with ``links`` links each, all reachable from the first one."""
    names = [INDEX, *(f"/catalogue/section-{n % 40}/item-{n:06}.html" for n in range(1, pages))]
    bodies = {}
    for number, name in enumerate(names):
        chance = random.Random(number)
        targets = [child for child in (2 * number + 1, 2 * number + 2) if child < pages]
        targets += chance.choices(range(pages), k=max(0, links - len(targets)))
        entries = "\n".join(
            f'<li class="entry"><a href="{names[target]}">Item {target}</a>'
            f" <em>{' '.join(chance.choices(WORDS, k=5))}</em></li>"
            for target in targets[:links]
        )
        bodies[name] = (
            f"<!DOCTYPE html>\n<html><head><title>Item {number}</title></head>\n"
            f"<body><h1>Item {number}</h1><ul>\n{entries}\n</ul></body></html>\n"
        ).encode()
    return bodies


def real(folder: Path, most: int) -> dict[str, bytes]:
    """The first ``most`` HTML pages below ``folder``, breadth first from its index.

    Links that lead elsewhere are taken out, so that every crawler finds the same pages in
    whatever order it goes.
    """
    root = folder.resolve()
    bodies: dict[str, bytes] = {}
    found = deque([INDEX])
    known = {INDEX}
    while found and len(bodies) < most:
        path = found.popleft()
        bodies[path] = (root / unquote(path).lstrip("/")).read_bytes()
        for target in (_target(path, match) for match in HREF.finditer(bodies[path])):
            if target and target not in known and (root / unquote(target).lstrip("/")).is_file():
                known.add(target)
                found.append(target)
    for path, body in bodies.items():

        def cut(match: re.Match[bytes], path: str = path) -> bytes:
            inside = _target(path, match) in bodies
            return match[0] if inside else match[1] + b"data-" + match[0][len(match[1]) :]

        bodies[path] = HREF.sub(cut, body)
    return bodies


def _target(path: str, match: re.Match[bytes]) -> str | None:
    """The path that a link of the page ``path`` leads to, if it is an HTML file of this site."""
    link = (match[2] or match[3] or b"").decode("utf-8", "replace").strip()
    try:
        parts = urlsplit(urljoin(f"http://site{path}", link))
    except ValueError:
        return None
    if parts.netloc != "site" or parts.query or not parts.path.endswith(".html"):
        return None
    return quote(posixpath.normpath(unquote(parts.path)), safe="/!$&'()*+,;=:@~-._")


# The process


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as much of it as crawlers' GETs need."""

    answers: dict[str, bytes]
    hits: list[tuple[float, str]]
    delay: float

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            self._buffer = rest
            self._answer(head.split(b" ", 2)[1].decode("latin-1"))

    def _answer(self, path: str) -> None:
        if path.startswith("/-/"):
            body = json.dumps(self.hits).encode() if path == "/-/hits" else b"[]"
            if path == "/-/forget":
                self.hits.clear()
            self._transport.write(answer(body, "application/json"))
            return
        self.hits.append((time.time(), path))
        found = self.answers.get(path) or answer(b"not found", "text/plain", "404 Not Found")
        if self.delay:
            asyncio.get_running_loop().call_later(self.delay, self._transport.write, found)
        else:
            self._transport.write(found)


def answer(body: bytes, kind: str, status: str = "200 OK") -> bytes:
    """A whole HTTP response."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def serve(bodies: dict[str, bytes], delay: float) -> None:
    _Connection.answers = {
        path: answer(body, "text/html; charset=utf-8") for path, body in bodies.items()
    }
    _Connection.hits, _Connection.delay = [], delay
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], len(bodies), flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=1500)
    parser.add_argument("--links", type=int, default=50)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    options = parser.parse_args()
    bodies = (
        real(options.folder, options.pages)
        if options.folder
        else generated(options.pages, options.links)
    )
    asyncio.run(serve(bodies, options.delay))


if __name__ == "__main__":
    main()
