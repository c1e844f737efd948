"""Items into SQLite, one row per URL however often a page is delivered."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

from bookshop.items import Book, Page

_PATIENCE = 30.0  # seconds to wait for another process that is writing
_TABLES = """
CREATE TABLE IF NOT EXISTS pages (
    url TEXT PRIMARY KEY, kind TEXT, title TEXT, found_on TEXT, worker TEXT, stored INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS books (
    url TEXT PRIMARY KEY, title TEXT, author TEXT, category TEXT, price INTEGER, rating INTEGER,
    in_stock INTEGER, worker TEXT, stored INTEGER
) WITHOUT ROWID;
"""
# A page whose worker was killed between the write and the acknowledgement comes again: the row is
# overwritten, and "stored" tells how often that was so.
_PAGE = """
INSERT INTO pages VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT (url) DO UPDATE SET kind = excluded.kind,
    title = excluded.title, found_on = excluded.found_on, worker = excluded.worker,
    stored = stored + 1
"""
_BOOK = """
INSERT INTO books VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT (url) DO UPDATE SET
    title = excluded.title, author = excluded.author, category = excluded.category,
    price = excluded.price, rating = excluded.rating, in_stock = excluded.in_stock,
    worker = excluded.worker, stored = stored + 1
"""


class Database:
    """The result's file. Any number of processes may write to it at the same time."""

    def __init__(self, path: str | Path, worker: str) -> None:
        self._worker = worker
        # Autocommit: each row is on its own.
        self._connection = sqlite3.connect(
            path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        self._write_ahead()
        self._connection.execute("PRAGMA synchronous = NORMAL")
        self._connection.executescript(_TABLES)

    def _write_ahead(self) -> None:
        # This one statement fails at once when another process does the same at the same moment:
        # SQLite's own timeout does not cover it.
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def store(self, item: Page | Book) -> None:
        """Write one item; it is in the file when this returns."""
        statement = _PAGE if isinstance(item, Page) else _BOOK
        self._connection.execute(statement, (*astuple(item), self._worker))

    def close(self) -> None:
        self._connection.close()


class SQLitePipeline:
    """Writes from a thread of its own, so that a slow disk does not stop the downloads.

    `process_item` returns when the row is written: only then does Scrapy take the page for
    finished, and only then does scrapy-redisq take it out of the frontier.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite")

    @classmethod
    def from_crawler(cls, crawler: Any) -> SQLitePipeline:
        return cls(crawler.settings["BOOKSHOP_DATABASE"])

    # Scrapy 2.13 passes the spider to these three, newer versions do not: hence its default.
    def open_spider(self, spider: Any = None) -> None:
        self._database = Database(self._path, f"{socket.gethostname()}:{os.getpid()}")

    def close_spider(self, spider: Any = None) -> None:
        self._thread.shutdown()
        self._database.close()

    async def process_item(self, item: Any, spider: Any = None) -> Any:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._database.store, item)
        return item
