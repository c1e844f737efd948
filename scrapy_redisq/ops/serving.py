"""HTTP, as dashboard and exporter have it: where it listens, to how many, in which threads."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from typing import TypeVar

from aiohttp import web

from scrapy_redisq.errors import RedisqError

T = TypeVar("T")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MOST_CONNECTIONS = 500
"""At a time; a browser has up to six."""

KEPT_ALIVE = 20.0
"""Seconds for which a connection without a request is kept."""

PATIENCE = 2.0
"""Seconds that a question waits for a thread; autoscalers and Prometheus wait for 3 to 10."""


class NoThread(RedisqError):
    """Raised when what was asked for was not begun: all threads are taken for long."""


async def in_thread(threads: Executor, what: Callable[[], T]) -> T:
    """Do ``what`` in one of ``threads``, unless none is free within `PATIENCE`: beside a Redis that
    hangs nobody waits for all who came before. Raises `NoThread`."""
    job = threads.submit(what)
    doing = asyncio.wrap_future(job)
    try:
        await asyncio.wait([doing], timeout=PATIENCE)
    except asyncio.CancelledError:
        doing.cancel()  # and the job, if it has not begun
        raise
    if not doing.done() and job.cancel():
        raise NoThread("too much is being asked of Redis, or it does not answer: ask later")
    return await doing


@contextlib.asynccontextmanager
async def listening(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Answers at ``host`` and ``port`` (0: a free one) while the context lasts; gives the port that
    it is. Beyond `MOST_CONNECTIONS` the oldest of those that ask nothing goes, and the newest if
    all ask. Raises OSError if it cannot listen."""
    asking: set[object] = set()

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        asking.add(request.protocol)
        try:
            return await handler(request)
        finally:
            asking.discard(request.protocol)

    app.middlewares.insert(0, noted)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, keepalive_timeout=KEPT_ALIVE)
    await runner.setup()
    answering = runner.server
    assert answering is not None
    loop = asyncio.get_running_loop()

    def connected() -> web.RequestHandler:
        protocol = answering()
        # In the next turn of the loop it is one of aiohttp's connections, the last.
        loop.call_soon(loop.call_soon, make_room, protocol)
        return protocol

    def make_room(newest: web.RequestHandler) -> None:
        too_many = len(answering.connections) - MOST_CONNECTIONS
        idle = [one for one in answering.connections if one not in asking and one is not newest]
        for one in idle[: max(0, too_many)]:
            one.force_close()
        if too_many > len(idle) and newest.transport is not None:
            newest.transport.write(b"HTTP/1.0 503 Too many look\r\nContent-Length: 0\r\n\r\n")
            newest.force_close()

    try:
        server = await loop.create_server(connected, host, port)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def until_ended() -> None:
    """Until SIGINT or SIGTERM."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()


def address_text(host: str, port: int) -> str:
    """The address as a browser takes it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
