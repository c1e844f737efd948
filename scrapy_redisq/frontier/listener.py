"""Hears what other workers publish, whatever it is that they publish."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from scrapy_redisq.frontier.scripts import AsyncClient

AGAIN = 2.0
"""Seconds after which a listener that was cut off listens again."""

QUIET = 60.0
"""Seconds without a message after which a listener listens anew: in a cluster to the node that was
heard last. One that is gone without a word would not be missed."""

# As ``announce()`` of ``slots/state.lua`` writes it: microseconds of at most a year, and a slot of
# at most as many bytes as a slot's name has (``seeds.MAX_SLOT_LENGTH``) and some to spare.
_NEWS = re.compile(rb"([0-9]{1,14}) (.{1,300})", re.DOTALL)


class Listener:
    """Listens to the wake channels of a frontier's shards until it is cancelled.

    ``woken(channel)`` is called when there is new work, ``announced(slot, seconds)`` when a slot is
    parked for so long, or with 0 when something else about it has changed; ``told(channel,
    worker)`` when the next exchange has something to say to that worker, or with "" to all;
    ``listening(yes)`` when the channels can be heard, and when they no longer can;
    ``failed(error)`` with what nobody expected.
    None of it ends the listener: it listens again after `AGAIN`. Anybody who may publish can say
    anything, so what is not understood is passed over.
    """

    def __init__(
        self,
        client: AsyncClient,
        channels: Sequence[str],
        *,
        woken: Callable[[str], None],
        announced: Callable[[str, float], None],
        told: Callable[[str, str], None],
        listening: Callable[[bool], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._client = client
        self._channels = channels
        self._woken = woken
        self._announced = announced
        self._told = told
        self._listening = listening
        self._failed = failed

    async def run(self) -> None:
        """Listen, for ever. Where that is not allowed, this tries again and again."""
        while True:
            try:
                with contextlib.suppress(RedisError, OSError):
                    await self._listen()
            except Exception as error:
                self._failed(error)
            finally:
                self._listening(False)
            await asyncio.sleep(AGAIN)

    async def _listen(self) -> None:
        pubsub = self._client.pubsub(ignore_subscribe_messages=True)
        async with pubsub:
            await pubsub.subscribe(*self._channels)
            self._listening(True)
            until = time.monotonic() + QUIET
            while (left := until - time.monotonic()) > 0:
                message = await pubsub.get_message(timeout=left)
                if message is not None:
                    until = time.monotonic() + QUIET
                    self._heard(message["channel"].decode(), message["data"])
                    # Messages that have arrived are read without a pause: a flood of them must
                    # not stop the crawl.
                    await asyncio.sleep(0)

    def _heard(self, channel: str, message: bytes) -> None:
        if not message:
            self._woken(channel)
        elif news := _NEWS.fullmatch(message):
            with contextlib.suppress(UnicodeDecodeError):  # no slot of ours
                self._announced(news[2].decode(), int(news[1]) / 1e6)
        elif message.startswith(b"told"):
            self._told(channel, message[5:].decode(errors="replace"))
