"""A site of many hosts, 127.0.0.1 and up, in a process of its own that logs when it is asked.

``python -m benchmarks.hosts '[{"answer": 0.5}, {}]'`` serves as many hosts as are listed and prints
its port. ``/-/log`` is its log. It runs before all other processes where it may (SCHED_FIFO), so
that times are those of arrival and not of when it got the processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.site import answer


@dataclass(frozen=True)
class Host:
    """How a host answers. Times in seconds.

    ``answer``: what an answer takes. ``trouble_at``: from when, after the first request to it, it
    answers 503 with ``Retry-After: retry_after``, for ``trouble``.
    """

    answer: float = 0.0
    trouble_at: float = 0.0
    trouble: float = 0.0
    retry_after: int = 0


@dataclass(frozen=True)
class Hit:
    """One request. Times are those of time.monotonic(), which all processes share.

    ``began``: when its worker began to download it. ``arrived``: when its first bytes were read.
    ``ended``: just before the answer was sent, or when its connection was closed.
    """

    host: int
    path: str
    worker: int
    began: float
    arrived: float
    ended: float
    status: int


class Hosts:
    """The process, from outside; a context manager."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        command = [sys.executable, "-m", "benchmarks.hosts"]
        command.append(json.dumps([asdict(host) for host in hosts]))
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def url(self, host: int, path: str) -> str:
        return f"http://{address(host)}:{self.port}{path}"

    def hits(self) -> list[Hit]:
        """All requests that have been answered, in order of arrival."""
        with urllib.request.urlopen(self.url(0, "/-/log")) as response:
            hits = [Hit(*entry) for entry in json.loads(response.read())]
        return sorted(hits, key=lambda hit: hit.arrived)


def address(host: int) -> str:
    """The IP address of a host, which is its slot, too."""
    return f"127.0.0.{host + 1}"


# The process


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, one request at a time."""

    log: list[list[Any]]

    def __init__(self, number: int, host: Host, seen: dict[str, float]) -> None:
        self._number, self._host, self._seen = number, host, seen
        self._buffer = b""
        self._arrived = 0.0
        self._entry: list[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._buffer:
            self._arrived = now
        self._buffer += data
        if b"\r\n\r\n" in self._buffer:
            lines = self._buffer.decode("latin-1").split("\r\n")
            self._buffer = b""
            headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            self._answer(lines[0].split(" ")[1], headers)

    def connection_lost(self, error: Exception | None) -> None:
        if self._entry:
            self._entry[5] = time.monotonic()
            self.log.append(self._entry)
            self._entry = None

    def _answer(self, path: str, headers: dict[str, str]) -> None:
        if path == "/-/log":
            self._transport.write(answer(json.dumps(self.log).encode(), "application/json"))
            return
        since = self._arrived - self._seen.setdefault("first", self._arrived)
        host = self._host
        in_trouble = host.trouble_at <= since < host.trouble_at + host.trouble
        status = 503 if in_trouble else 200
        began, worker = float(headers["x-started"]), int(headers["x-worker"])
        self._entry = [self._number, path, worker, began, self._arrived, 0.0, status]
        if host.answer:
            asyncio.get_running_loop().call_later(host.answer, self._end, status)
        else:
            self._end(status)

    def _end(self, status: int) -> None:
        if self._entry is None:
            return
        found = answer(b"ok", "text/html")
        if status == 503:
            asked = f"503 Service Unavailable\r\nRetry-After: {self._host.retry_after}"
            found = answer(b"later", "text/html", asked)
        self._entry[5] = time.monotonic()
        self.log.append(self._entry)
        self._entry = None
        self._transport.write(found)


def _go_first() -> None:
    with contextlib.suppress(AttributeError, OSError):  # other systems, other users
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


async def serve(hosts: Sequence[Host]) -> None:
    _Connection.log = []
    loop = asyncio.get_running_loop()
    port = 0
    servers = []
    for number, host in enumerate(hosts):
        seen: dict[str, float] = {}

        def connected(
            number: int = number, host: Host = host, seen: dict[str, float] = seen
        ) -> _Connection:
            return _Connection(number, host, seen)

        server = await loop.create_server(connected, address(number), port)
        port = server.sockets[0].getsockname()[1]
        servers.append(server)
    _go_first()
    print(port, flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(serve([Host(**given) for given in json.loads(sys.argv[1])]))
