"""SQLite files."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from lab.databases.database import Database


class SQLiteDatabase(Database):
    """A file. It has no server: while it is "away", another connection holds its write lock."""

    kind = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self._lock: sqlite3.Connection | None = None
        self.fresh()

    @property
    def path(self) -> Path:
        return self.folder / f"items {self._databases}.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def fresh(self) -> str:
        self.start()
        self._databases += 1
        return self.url

    def empty(self) -> None:
        self.fresh()

    def start(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def stop(self) -> None:
        if self._lock is None:
            self._lock = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            self._lock.execute("BEGIN EXCLUSIVE")

    kill = pause = stop
    resume = start

    def close(self) -> None:
        self.start()
        shutil.rmtree(self.folder, ignore_errors=True)
