"""A TCP proxy in front of a Redis server that misbehaves as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct

from lab.in_thread import InThread

CHUNK = 1 << 18
IN_FLIGHT = 16
"""Chunks that are on their way in one direction at most."""


class Proxy(InThread):
    """A proxy to ``to_port`` on a free port of 127.0.0.1; a context manager.

    All verbs take effect at once, also on the connections that are open. Only commands by
    EVALSHA count as exchanges, so that connecting and logging in work undisturbed.
    """

    def __init__(self, to_port: int, seed: int = 0) -> None:
        super().__init__()
        self.round_trip = 0.0
        """Seconds that a command and its reply take longer."""
        self.reset_share = 0.0
        """Share of the chunks in either direction that end in a reset of the connection."""
        self.drop_share = 0.0
        """Share of the exchanges that are executed and whose reply is dropped."""
        self.drop_next = 0
        """How many of the next exchanges are executed without a reply."""
        self.silent = False
        """A dropped reply never comes; else the connection is reset in its place."""
        self.dropped = self.resets = self.exchanges = 0
        self.to_port = to_port
        """Where new connections go to."""
        self._random = random.Random(seed)
        self._flowing: dict[str, asyncio.Event] = {}

    def cut(self, origin: str = "") -> None:
        """Nothing arrives any more, and no side hears of it: no reset. With ``origin`` only
        between the server and clients of that address."""
        self._loop.call_soon_threadsafe(self._flow(origin).clear)

    def mend(self, origin: str = "") -> None:
        """What was sent meanwhile arrives late, as TCP would deliver it."""
        self._loop.call_soon_threadsafe(self._flow(origin).set)

    def _flow(self, origin: str) -> asyncio.Event:
        """Set while what comes from ``origin``, or with "" everything, passes."""
        if origin not in self._flowing:
            self._flowing[origin] = asyncio.Event()
            self._flowing[origin].set()
        return self._flowing[origin]

    async def _passes(self, origin: str) -> None:
        await self._flow("").wait()
        await self._flow(origin).wait()

    async def listen(self) -> list[asyncio.Server]:
        server = await asyncio.start_server(self.accepted, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        return [server]

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        await self._passes(connection.origin)
        await connection.carry()

    async def pass_on(
        self, due: float, data: bytes, upwards: bool, connection: _Connection
    ) -> bool:
        """Wait until this chunk is ``due``, by the loop's time; -> whether it is to arrive."""
        if (left := due - self._loop.time()) > 0:
            await asyncio.sleep(left)
        await self._passes(connection.origin)
        if self.reset_share and self._random.random() < self.reset_share:
            self.resets += 1
            connection.reset()
            return False
        if upwards and b"\r\nEVALSHA\r\n" in data[:60]:
            self.exchanges += 1
            if self.drop_next > 0 or self._random.random() < self.drop_share:
                self.drop_next = max(0, self.drop_next - 1)
                connection.mute = True
        elif not upwards and connection.mute:
            if not connection.counted:
                connection.counted = True
                self.dropped += 1
            if not self.silent:
                connection.reset()
            return False
        return True


class _Connection:
    """One client's connection and its counterpart to the server."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.mute = self.counted = False
        self._proxy = proxy
        self._client = (reader, writer)
        self.origin: str = writer.get_extra_info("peername")[0]

    async def carry(self) -> None:
        self._server = await asyncio.open_connection("127.0.0.1", self._proxy.to_port)
        try:
            await asyncio.gather(
                self._pump(self._client[0], self._server[1], True),
                self._pump(self._server[0], self._client[1], False),
            )
        finally:
            self._server[1].close()

    def reset(self) -> None:
        for _, writer in (self._client, self._server):
            with contextlib.suppress(OSError):  # already closed
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upwards: bool
    ) -> None:
        """Pass on what is read in its order, each chunk when it is due."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT)
        reading = asyncio.create_task(self._read(reader, chunks))
        try:
            with contextlib.suppress(OSError):
                while (chunk := await chunks.get())[1]:
                    if await self._proxy.pass_on(*chunk, upwards, self):
                        writer.write(chunk[1])
                        await writer.drain()
        finally:
            reading.cancel()
        writer.close()

    async def _read(
        self, reader: asyncio.StreamReader, chunks: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        data = b"nothing yet"
        while data:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                data = b""
            due = asyncio.get_running_loop().time() + self._proxy.round_trip / 2
            await chunks.put((due, data))
