"""The sites that are crawled; what stands beside them in this process only waits."""

from __future__ import annotations

import asyncio
import posixpath
import random
import re
from collections import deque
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit

from lab.site import Answer, Site, address

INDEX = "/index.html"
PORT = b":PORT"
"""In a link, for the port that the site gets."""
HREF = re.compile(rb"""(<a\b[^>]*?\s)href\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.I | re.S)
WORDS = ("crawl", "page", "link", "frontier", "lease", "slot", "queue", "worker", "some", "words")


class Pages(Site):
    """So many pages with ``links`` each, or the first ones of ``folder``. ``delay``: seconds that
    each answer takes. ``hosts``: on so many hosts in turn, with links from each to all others."""

    def __init__(
        self,
        pages: int,
        links: int = 50,
        *,
        folder: Path | None = None,
        delay: float = 0.0,
        hosts: int = 1,
    ) -> None:
        super().__init__(lambda path: None, hosts)
        self._bodies = real(folder, pages) if folder else generated(pages, links, hosts)
        self._delay = delay
        self.pages = len(self._bodies)
        self.hosts = " ".join(map(address, range(hosts)))
        """As the spider takes them."""

    @property
    def start_url(self) -> str:
        return self.url + INDEX

    async def listen(self) -> list[asyncio.Server]:
        servers = await super().listen()
        port = b":%d" % self.port
        self.page = {
            path: Answer(body.replace(PORT, port), delay=self._delay)
            for path, body in self._bodies.items()
        }.get
        return servers


def generated(pages: int, links: int, hosts: int = 1) -> dict[str, bytes]:
    """``pages`` pages with ``links`` links each, all reachable from the first one."""
    paths = [INDEX, *(f"/catalogue/section-{n % 40}/item-{n:06}.html" for n in range(1, pages))]
    names = paths
    if hosts > 1:
        names = [
            f"http://{address(number % hosts)}{PORT.decode()}{path}"
            for number, path in enumerate(paths)
        ]
    bodies = {}
    for number, path in enumerate(paths):
        chance = random.Random(number)
        targets = [child for child in (2 * number + 1, 2 * number + 2) if child < pages]
        targets += chance.choices(range(pages), k=max(0, links - len(targets)))
        entries = "\n".join(
            f'<li class="entry"><a href="{names[target]}">Item {target}</a>'
            f" <em>{' '.join(chance.choices(WORDS, k=5))}</em></li>"
            for target in targets[:links]
        )
        bodies[path] = (
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
