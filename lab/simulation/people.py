"""Who looks after a crawl from outside: pauses it or a host, and pushes requests. What has failed
is tried again, and what a server may have lost is said again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import redis

from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import RedisqError
from scrapy_redisq.server.connection import open_server

if TYPE_CHECKING:
    from lab.simulation.world import World

AGAIN = 1.0
"""Seconds until what has failed is tried again."""


class Waits(Exception):
    """Raised where a command would wait, and nobody else could do anything meanwhile."""


class People:
    """``pushed``: numbers of what was pushed. ``pauses``: (slot or "", from when, until when).
    ``resumed``: (slot or "", when a server was told). ``ended``: (when, URL of a request that came
    again, how many of it waited). ``requeued``: how many dead letters.
    ``busy``: what they go on with."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._said: dict[str, Callable[[Frontier], Any]] = {}
        self.busy: set[asyncio.Task[None]] = set()
        self._paused: set[str] = set()
        self.pushed = self.requeued = 0
        self.pauses: list[tuple[str, float, float]] = []
        self.resumed: list[tuple[str, float]] = []
        self.ended: list[tuple[float, str, int]] = []
        time.sleep = self._sleep  # type: ignore[assignment]

    @staticmethod
    def _sleep(seconds: float) -> None:
        raise Waits

    async def pause(self, slot: str, seconds: float) -> None:
        """Pause a slot, or the crawl, for so long, unless it is paused."""
        if slot in self._paused:
            return
        self._paused.add(slot)
        await self._say("", lambda one: one.pause(slot) if slot else one.pause_crawl())
        began = self._world.clock.now
        await asyncio.sleep(seconds)
        self._paused.discard(slot)
        self.pauses.append((slot, began, self._world.clock.now))

        def resume(frontier: Frontier) -> None:
            self.resumed.append((slot, self._world.clock.now))
            if slot:
                frontier.resume(slot)
            else:
                frontier.resume_crawl()

        await self._say(f"resume {slot}".rstrip(), resume)

    async def push(self) -> None:
        number, self.pushed = self.pushed, self.pushed + 1
        request = {
            "url": f"{self._world.site.pages[0].url}?pushed{number}",
            "callback": "parse_pushed",
            "cb_kwargs": {"n": number},
        }
        await self._say(f"push {number}", lambda frontier: frontier.push([request]))

    async def reset(self) -> None:
        """Delete the frontier, whoever works on it; but not on an old primary."""

        def reset(frontier: Frontier) -> None:
            if self._world.network.split:
                raise Waits
            frontier.reset(force=True)

        await self._say("", reset)

    async def requeue(self) -> int:
        """Requeue all dead letters, once; -> how many."""
        requeued = 0

        def requeue(frontier: Frontier) -> None:
            nonlocal requeued
            letters = list(frontier.dead())
            requeued += len(letters)  # of what is not heard a part may be
            frontier.requeue_same(letters)

        await self._say("", requeue)
        self.requeued += requeued
        return requeued

    def end_recurring(self) -> None:
        """Let what waits for its time come no more."""

        def end(frontier: Frontier) -> None:
            for url in sorted({one["url"] for one in frontier.schedule()}):
                self.ended.append((self._world.clock.now, url, frontier.unschedule(url)))

        self._begin(self._say("", end))

    def _begin(self, action: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(action)
        self.busy.add(task)
        task.add_done_callback(self.busy.discard)

    async def tell(self, what: str) -> None:
        """Tell all workers something."""
        await self._say("work" if what == "work" else "", lambda frontier: frontier.tell(what))

    async def mend(self, key: str, kind: bytes) -> None:
        """Delete a key that was written over, and is of this type then; say that it is in order."""

        def put_in_order(frontier: Frontier) -> None:
            server = self._world.network.primary_of(key)
            if server.redis.type(key) == kind:
                server.redis.delete(key)
            frontier.mend()

        await self._say(f"mend {key}", put_in_order)

    def lost(self) -> None:
        """The server may have forgotten what it was told: it is told again."""
        for what, action in list(self._said.items()):
            self._begin(self._say(what, action))

    async def _say(self, what: str, action: Callable[[Frontier], Any]) -> None:
        """Until it is heard. ``what``: to be said again after a loss."""
        if what:
            self._said[what] = action
        while not self._is_heard(action):
            await asyncio.sleep(AGAIN)

    def _is_heard(self, action: Callable[[Frontier], Any]) -> bool:
        try:
            server = open_server(self._world.network.url)
            server.wait()
            config, settings = self._world.config(), self._world.settings()
            with Frontier(server, "sim", config, settings=settings) as frontier:
                told = action(frontier)
        except (redis.RedisError, RedisqError, Waits) as error:
            self._world.say(f"a person is told: {error!r:.200}")
            return False
        return not getattr(told, "errors", None)
