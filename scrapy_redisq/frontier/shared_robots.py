"""robots.txt of hosts as a fleet shares it, and the delays that it asks for."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

from redis.exceptions import RedisError

from scrapy_redisq.errors import RedisqError
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.run_session import RunSession

MAX_TEXT = 500 * 1024
"""Bytes of a robots.txt that are heeded: as many as RFC 9309, 2.5 wants to be parsed at least."""

_CLOSED = b"closed"
"""In the place of a compressed text: the host cannot say what it allows."""

AWAY = (RedisError, RedisqError, OSError)
"""What is raised when the frontier cannot be asked."""


@dataclass(frozen=True)
class Shared:
    """What the frontier says of a host's robots.txt: it is "known", with its text and the seconds
    for which it is valid; the host is "closed" for so long, because it cannot say what it allows;
    this worker is to "fetch" it, or to "wait" for another one."""

    what: Literal["known", "closed", "fetch", "wait"]
    text: bytes = b""
    valid: float = 0.0


class SharedRobots:
    """The robots.txt of a run, as one worker sees them. All methods raise `AWAY`."""

    def __init__(self, run_session: RunSession) -> None:
        self._run_session = run_session

    async def ask(self, host: str) -> Shared:
        """The text, or who fetches it. The worker that is to fetch it has half a minute."""
        what, text, valid = await self._robots(host)
        if what == "wait":
            return Shared("wait")
        if what == "known" and text == _CLOSED:
            return Shared("closed", valid=valid)
        if what == "known":
            try:
                # What is no text of ours is fetched, and then replaced.
                return Shared("known", zlib.decompressobj().decompress(text, MAX_TEXT), valid)
            except zlib.error:
                pass
        return Shared("fetch")

    async def keep(self, host: str, text: bytes | None, valid: float) -> None:
        """For ``valid`` seconds other workers get the first `MAX_TEXT` bytes of the text, or fetch
        nothing from the host (None)."""
        kept = _CLOSED if text is None else zlib.compress(text[:MAX_TEXT], 1)
        await self._robots(host, kept, valid)

    async def release(self, host: str) -> None:
        """This worker does not fetch it after all: another one may."""
        await self._robots(host, b"", 0.0)

    async def _robots(
        self, host: str, text: bytes | None = None, ttl: float = 0.0
    ) -> tuple[str, bytes, float]:
        shard = self._run_session.shard_of(host).shard
        name, run = self._run_session.terms.name, self._run_session.joined.run
        call = calls.robots_txt(name, shard, run, host, text=text, ttl=ttl)
        return await self._run_session.call(call)

    async def set_delay(self, host: str, slot: str, delay: float) -> bool:
        """The robots.txt of ``host``, which is in ``slot``, asks for ``delay`` seconds (0: for
        none). -> has that changed the slot's delay?"""
        shard = self._run_session.shard_of(slot).shard
        name, run = self._run_session.terms.name, self._run_session.joined.run
        call = calls.crawl_delay(name, shard, run, host, slot, delay)
        return await self._run_session.call(call)
