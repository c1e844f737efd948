"""How busy the machine is, for tests in which workers have to be in time."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from scrapy import signals

logger = logging.getLogger(__name__)

EVERY = 0.02
OFTEN = 0.1


class Watch:
    """Runs `watch` from a signal on until the spider is closed."""

    begins = signals.spider_opened

    def __init__(self, crawler):
        self.stats, self.task = crawler.stats, None
        crawler.signals.connect(self.begin, self.begins)
        crawler.signals.connect(self.end, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def begin(self):
        if self.task is None:
            self.task = asyncio.ensure_future(self.watch())

    def end(self):
        if self.task is not None:
            self.task.cancel()


class Lateness(Watch):
    """By how much the event loop came late to what was due, in all, from the first answer on: the
    stat ``lateness``, in seconds."""

    begins = signals.response_received

    async def watch(self):
        while True:
            due = time.monotonic() + EVERY
            await asyncio.sleep(EVERY)
            self.stats.inc_value("lateness", max(0.0, time.monotonic() - due))


class LoopWatch(Watch):
    """The longest time that the event loop stood still, in seconds, as a stat ``fault/…``."""

    async def watch(self):
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.05)
            self.stats.max_value("fault/longest_block", time.monotonic() - began - 0.05)


class Starved(Watch):
    """Logs for how long this process could have run while others did, as far as Linux tells it."""

    async def watch(self):
        told = waited()
        while True:
            await asyncio.sleep(OFTEN)
            now = waited()
            if now - told >= OFTEN:
                logger.info("others had the processor for %.3f s", now - told)
                told = now


def waited():
    """Seconds since this process began."""
    total = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            total += int(file.read_text().split()[1])
    return total / 1e9
