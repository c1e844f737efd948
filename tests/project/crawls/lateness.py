"""How busy the machine is, for tests that look at the clock."""

import asyncio
import time

from scrapy import signals

EVERY = 0.02


class Lateness:
    """By how much the event loop came late to what was due, in all, from the first answer on: the
    stat ``lateness``, in seconds."""

    def __init__(self, crawler):
        self.stats, self.task = crawler.stats, None
        crawler.signals.connect(self.begin, signals.response_received)
        crawler.signals.connect(self.end, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def begin(self):
        if self.task is None:
            self.task = asyncio.ensure_future(self.watch())

    async def watch(self):
        while True:
            due = time.monotonic() + EVERY
            await asyncio.sleep(EVERY)
            self.stats.inc_value("lateness", max(0.0, time.monotonic() - due))

    def end(self):
        if self.task is not None:
            self.task.cancel()
