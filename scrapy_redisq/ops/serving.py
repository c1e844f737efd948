"""HTTP, as dashboard and exporter have it: where it listens, and in which threads it asks."""

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

KEPT_ALIVE = 20.0
"""Seconds for which a connection without a request is kept."""

MOST_SILENT = 500
"""Connections on which nothing is asked just now. Each is an open file, of which a process may have
1,024 on most systems; beyond that it would accept none, not even that of a probe."""

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
    it is. Of more than `MOST_SILENT` connections the oldest are closed. Raises OSError if it cannot
    listen."""
    silent: dict[web.RequestHandler, asyncio.BaseTransport | None] = {}
    """The oldest come first. Of those that have ended some are still in it."""

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        silent.pop(request.protocol, None)
        transport = request.transport
        try:
            return await handler(request)
        finally:
            silent[request.protocol] = transport

    app.middlewares.insert(0, noted)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0, keepalive_timeout=KEPT_ALIVE)
    await runner.setup()
    answering, loop = runner.server, asyncio.get_running_loop()
    assert answering is not None

    def cut(protocol: web.RequestHandler, transport: asyncio.BaseTransport | None) -> None:
        protocol.force_close()
        if isinstance(transport, asyncio.Transport):
            transport.abort()  # else it stays open until its answers are read

    def connected() -> web.RequestHandler:
        protocol = answering()
        silent[protocol] = None
        while len(silent) > MOST_SILENT:
            oldest = next(iter(silent))
            # It may be so new that it has no transport yet.
            loop.call_soon(cut, oldest, silent.pop(oldest))
        return protocol

    try:
        server = await loop.create_server(connected, host, port)
        with contextlib.closing(server):
            yield server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


async def serve(app: web.Application, bind: tuple[str, int], told: Callable[[str], str]) -> None:
    """Answer until SIGINT or SIGTERM; print what is ``told`` of the address, as a browser takes
    it."""
    host, port = bind
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with listening(app, host, port) as bound:
        shown = f"[{host}]" if ":" in host else host
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        print(told(f"http://{shown}:{bound}"), flush=True)
        await ended.wait()
