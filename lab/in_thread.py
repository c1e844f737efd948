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
        self._listening: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

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
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self.carry(reader, writer)
        finally:
            writer.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        try:
            servers = await self.listen()
        except BaseException as error:
            self._listening.set_exception(error)
            return
        self._listening.set_result(None)
        await self._end.wait()
        for server in servers:
            server.close()
        # The loop cancels what serves connections when this returns.
