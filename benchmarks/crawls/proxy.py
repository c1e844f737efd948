"""A TCP proxy that makes a server distant: each chunk arrives half a round trip later.

``python -m benchmarks.crawls.proxy PORT SECONDS`` prints its port. Plain asyncio: uvloop's
timers round to a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import redis


class Proxy:
    """The proxy's process, from outside; a context manager. ``round_trip`` in seconds.

    With 0 there is no process, and ``port`` is the server's own.
    """

    def __init__(self, to_port: int, round_trip: float) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.port = to_port
        if not round_trip:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.crawls.proxy", str(to_port), str(round_trip)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def measured(self) -> float:
        """The median time of a PING to the Redis server behind it, in seconds."""
        times = []
        with redis.Redis(port=self.port) as client:
            client.ping()
            for _ in range(20):
                began = time.perf_counter()
                client.ping()
                times.append(time.perf_counter() - began)
        return statistics.median(times)


class _End(asyncio.Protocol):
    """One end of a connection; what it receives is written to the other end later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._chunks: deque[bytes] = deque()
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        # In a queue of their own: two timers of the same moment have no order.
        self._chunks.append(data)
        asyncio.get_running_loop().call_later(self._delay, self._pass_on)

    def _pass_on(self) -> None:
        chunk = self._chunks.popleft()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(chunk)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            asyncio.get_running_loop().call_later(self._delay, self.other.transport.close)


class _Accepted(_End):
    """The client's end: it opens the connection to the server."""

    def __init__(self, to_port: int, delay: float) -> None:
        super().__init__(delay)
        self._to_port = to_port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        assert self.transport is not None
        server_end = _End(self._delay)
        server_end.other = self
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: server_end, "127.0.0.1", self._to_port
            )
        except OSError:
            self.transport.close()
            return
        self.other = server_end
        self.transport.resume_reading()


async def serve(to_port: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Accepted(to_port, delay), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]) / 2))
