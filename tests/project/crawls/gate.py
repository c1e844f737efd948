"""Lets the workers of a fleet begin together."""

import asyncio
from pathlib import Path

from scrapy.exceptions import NotConfigured


class Gate:
    """Holds `start()` back until the file FLEET_GATE is there, which is when all have joined."""

    def __init__(self, crawler):
        if not crawler.settings["FLEET_GATE"]:
            raise NotConfigured
        self.file = Path(crawler.settings["FLEET_GATE"])

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def process_start(self, start):
        while not self.file.exists():
            await asyncio.sleep(0.01)
        async for each in start:
            yield each
