"""Item pipelines on the base of scrapy_redisq's, for the tests of that base.

FILE is where they write; a file beside it with the name of a fault turns that fault on.
"""

import asyncio
import json
import random
from pathlib import Path

from scrapy_redisq.errors import RowRefused, SettingError, SinkMismatch
from scrapy_redisq.pipelines import BatchPipeline, DatabasePipeline, writer


class LinesSink(BatchPipeline):
    """Lines of JSON, "batch": the batch's number, "size": its size."""

    async def open(self):
        self.path = Path(self.crawler.settings["FILE"])
        self.faults = set(self.crawler.settings.getlist("FAULTS"))
        self.batch_rows = self.crawler.settings.getint("BATCH_ROWS", 500)
        self.batch_seconds = self.crawler.settings.getfloat("BATCH_SECONDS", 0.0)
        if "open" in self.faults:
            raise SettingError("FILE", "…", "a file that can be opened")

    async def write(self, rows):
        while self.is_on("slow"):
            await asyncio.sleep(0.01)
        if self.is_on("away"):
            raise OSError("the disk is on holiday")
        if self.is_on("mismatch"):
            raise SinkMismatch("make another file")
        bad = [row for row in rows if self.number(row).endswith("3")]
        if bad and self.faults & {"named", "halved"}:
            raise RowRefused("no threes, please", bad if "named" in self.faults else ())
        if "unnamed" in self.faults and bad:
            raise ValueError("no threes, please")
        with self.path.open("a") as file:
            for row in rows:
                about = {"key": row.key, "batch": self.batches, "size": len(rows)}
                file.write(json.dumps({**row, **about}) + "\n")

    def is_on(self, fault):
        return self.path.with_name(fault).exists()

    @staticmethod
    def number(row):
        return row["url"].rpartition("/")[2]


class Shuffle:
    """An earlier pipeline that takes a random time for each item."""

    async def process_item(self, item, spider=None):
        await asyncio.sleep(random.uniform(0, 0.02))
        return item


class HastyDatabase(DatabasePipeline):
    """Has pages that it gives back fetched again soon."""

    async def open(self):
        writer.REFERENCE_DELAYS = (0.3,) * 5
        await super().open()
