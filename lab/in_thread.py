"""Servers on asyncio in a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class InThread:
    """Listens from the beginning of its context to the end, when its connections are cut. OSError
    if it cannot."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._listening: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.result(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def listen(self) -> Sequence[asyncio.Server]:
        """The servers, which hand their connections to `accepted`."""
        raise NotImplementedError

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        raise NotImplementedError

    async def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self.carry(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._end = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        try:
            servers = await self.listen()
        except BaseException as error:
            self._listening.set_exception(error)
            return
        self._listening.set_result(None)
        await self._end.wait()
        for server in servers:
            server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
