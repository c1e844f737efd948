"""An upsert sink: one row per URL in SQLite, in the file that SINK names."""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor

from crawls.crash import reached

UPSERT = "INSERT INTO pages VALUES (?, ?, 1) ON CONFLICT (url) DO UPDATE SET stored = stored + 1"


class SQLiteSink:
    """Writes from a thread of its own; `process_item` returns when the row is in the file."""

    def __init__(self, path):
        self.path = path
        self.thread = ThreadPoolExecutor(1)

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler.settings["SINK"])

    def open_spider(self):
        self.db = sqlite3.connect(
            self.path, timeout=60, isolation_level=None, check_same_thread=False
        )

    def close_spider(self):
        self.thread.shutdown()
        self.db.close()

    async def process_item(self, item):
        reached("item")
        row = (item["url"], item["page"])
        await asyncio.get_running_loop().run_in_executor(self.thread, self.db.execute, UPSERT, row)
        reached("commit")
        return item
