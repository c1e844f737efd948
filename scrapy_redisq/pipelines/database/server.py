"""The database behind REDISQ_DATABASE_URL: one connection, and errors in the sinks' terms.

No password reaches a log or an error: addresses are shown without, and `DatabaseServer.redact`
takes it out of what drivers say.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy

from scrapy_redisq.errors import (
    ConnectionLost,
    RedisqError,
    RowRefused,
    SettingError,
    SinkMismatch,
    SinkUnavailable,
    WriteFailed,
    with_causes,
)
from scrapy_redisq.pipelines.database.engine import engine
from scrapy_redisq.pipelines.database.errors import ErrorClasses, words
from scrapy_redisq.pipelines.database.url import SETTING, address, parsed, secrets

logger = logging.getLogger(__name__)

_PAUSES = (0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts to connect at start, the last one repeated."""


class DatabaseServer:
    """An engine with one connection, for one thread at a time; see `engine` for its sessions.

    Raises `SettingError` for a URL that cannot be used.
    """

    def __init__(self, url: str, *, connect_timeout: float) -> None:
        self._url = parsed(url)
        self._connect_timeout = connect_timeout
        self._secrets = secrets(self._url)
        self.address = address(self._url)
        self._engine = engine(self._url, self.address, connect_timeout)
        self.dialect: sqlalchemy.Dialect = self._engine.dialect
        self._errors = ErrorClasses(self._engine.dialect)
        self._connection: sqlalchemy.Connection | None = None
        self._file: tuple[Path, os.stat_result] | None = None
        self._told_waiting = False

    def open(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Connect and ``prepare``, and wait ``connect_timeout`` seconds for a server that is away,
        or an SQLite file that is locked.

        Raises `SinkUnavailable` after that, and at once for what waiting does not change, such as a
        wrong password; `SettingError` for an SQLite file without its folder.
        """
        if self.dialect.name == "sqlite":
            self._check_file()
        deadline = time.monotonic() + self._connect_timeout
        for attempt in range(1_000_000):
            try:
                self._connected()
                prepare()
                return
            except SinkUnavailable as error:
                said = str(error)
                if time.monotonic() >= deadline:
                    raise
            except RedisqError:  # of the settings, or of tables that do not fit
                raise
            except Exception as error:  # drivers have other ones as well, such as RuntimeError
                said = self.redact(words(error))
                _release(error)
                if not self._errors.may_come_up(error) or time.monotonic() >= deadline:
                    raise SinkUnavailable(f"{SETTING}: {self.address}: {said}") from None
            self.tell_waiting(said)
            time.sleep(min(_PAUSES[min(attempt, len(_PAUSES) - 1)], self._connect_timeout))

    def tell_waiting(self, why: str) -> None:
        """Warn, the first time, that `open` waits."""
        if not self._told_waiting:
            self._told_waiting = True
            logger.warning(
                "%s: %s does not take connections, waiting %g s for it "
                "(REDISQ_CONNECT_TIMEOUT): %s",
                *(SETTING, self.address, self._connect_timeout, why),
            )

    @contextlib.contextmanager
    def transaction(self, *, of_rows: bool = True) -> Iterator[sqlalchemy.Connection]:
        """A transaction: committed at the end, rolled back if there is an error.

        Errors of the database are raised as what `ErrorClasses` makes of them, with its words; all
        others as they are. After `SinkUnavailable` the next transaction connects anew. The commit
        may have been done though it raised `ConnectionLost`. Without rows (``of_rows``) all are
        `SinkUnavailable`. `SinkMismatch`: an SQLite file is not the one that was opened at first.
        """
        began = at_commit = False
        try:
            connection = self._connected()
            self._check_same_file()
            transaction = connection.begin()
            began = True
            yield connection
            at_commit = True
            transaction.commit()
            self._check_same_file()
        except BaseException as error:
            meaning = self._errors.meaning(error)
            if meaning is ConnectionLost and not began:
                meaning = SinkUnavailable  # it was lost before
            away = meaning is SinkUnavailable or not isinstance(error, Exception)
            # What waits for a lock, or was interrupted, is not to be asked for a rollback.
            if away or not self._rolled_back():
                self._drop()
            if meaning is None:
                raise
            said = self.redact(words(error))
            _release(error)
            if issubclass(meaning, RowRefused) and of_rows:
                raise meaning(said) from None
            said = f"{SETTING}: {self.address}: {said}"
            if not of_rows:
                raise SinkUnavailable(said) from None
            if issubclass(meaning, (WriteFailed, ConnectionLost)):
                raise meaning(said, at_commit=at_commit) from None
            raise meaning(said) from None

    def begin(self) -> contextlib.AbstractContextManager[sqlalchemy.Connection]:
        """A `transaction` without rows."""
        return self.transaction(of_rows=False)

    def close(self) -> None:
        """Close the connection. `transaction` would open another."""
        self._drop()
        self._engine.dispose()

    def redact(self, text: str) -> str:
        """The text with the password of the URL replaced by ``***``."""
        for secret in self._secrets:
            text = secret.sub("***", text)
        return text

    def _check_file(self) -> None:
        name = self._url.database
        if name in {None, "", ":memory:"}:
            logger.warning("%s: items in memory are gone when the crawl ends", SETTING)
        elif not str(name).startswith("file:") and not (folder := Path(str(name)).parent).is_dir():
            raise SettingError(SETTING, self.address, f"a file in a folder that exists: {folder}")

    def _connected(self) -> sqlalchemy.Connection:
        if self._connection is None:
            self._check_same_file()  # another one would be made
            self._connection = self._engine.connect()
            if self._file is None and self.dialect.name == "sqlite":
                self._file = _file_of(self._connection)
        return self._connection

    def _check_same_file(self) -> None:
        if self._file is None:
            return
        path, opened = self._file
        try:
            same = os.path.samestat(path.stat(), opened)
        except FileNotFoundError:
            same = False
        if not same:
            self._drop()
            raise SinkMismatch(
                f"{path} has been removed or replaced while items were written into it; those "
                "written before are in the old file. Start the crawl again to go on with the file "
                "that is there then"
            )

    def _rolled_back(self) -> bool:
        connection = self._connection
        if connection is None or connection.invalidated:
            return False
        try:
            connection.rollback()
        except Exception:
            return False
        return True

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        # Of a broken connection nothing more is expected than to be gone.
        with contextlib.suppress(Exception):
            connection.invalidate()
        with contextlib.suppress(Exception):
            connection.close()


def _file_of(connection: sqlalchemy.Connection) -> tuple[Path, os.stat_result] | None:
    """SQLite's file and what it is at the moment; None: the database is in memory."""
    driver_connection: Any = connection.connection.driver_connection
    ((_, _, name),) = driver_connection.execute("PRAGMA database_list").fetchall()[:1]
    return (Path(name), Path(name).stat()) if name else None


def _release(error: BaseException) -> None:
    """Let go of what an error holds that is not shown: half a megabyte with PyMySQL, whose errors,
    connections and TLS contexts refer to each other. It would gather while a database is away."""
    for one in with_causes(error):
        traceback.clear_frames(one.__traceback__)
