"""Where the dashboard listens, and to how many at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

MOST_CONNECTIONS = 500
"""At a time; a browser has up to six. Those beyond are answered with 503, and closed."""

KEPT_ALIVE = 20.0
"""Seconds for which a connection without a request is kept."""


class _Full(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"HTTP/1.0 503 Too many look\r\nContent-Length: 0\r\n\r\n")
        transport.close()


@contextlib.asynccontextmanager
async def listening(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Answers at ``host`` and ``port`` (0: a free one) while the context lasts; gives the port that
    it is. Raises OSError if it cannot."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, keepalive_timeout=KEPT_ALIVE)
    await runner.setup()
    answering = runner.server
    assert answering is not None

    loop = asyncio.get_running_loop()
    # Accepted, and not yet among aiohttp's connections: many may come at once.
    coming: set[object] = set()

    def connected() -> asyncio.BaseProtocol:
        if len(answering.connections) + len(coming) >= MOST_CONNECTIONS:
            return _Full()
        protocol = answering()
        coming.add(protocol)
        # In the next turn of the loop it is one of aiohttp's.
        loop.call_soon(loop.call_soon, coming.discard, protocol)
        return protocol

    try:
        server = await loop.create_server(connected, host, port)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
    finally:
        await runner.cleanup()
