"""Items into a database: each of them one row, however often its page is delivered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

from scrapy.utils.misc import load_object
from sqlalchemy import Connection, MetaData

from scrapy_redisq.errors import (
    ConnectionLost,
    RowRefused,
    SettingError,
    SinkUnavailable,
    WriteFailed,
)
from scrapy_redisq.pipelines.batch import BatchPipeline, Row
from scrapy_redisq.pipelines.database import engine
from scrapy_redisq.pipelines.database.catalogue import rolls_back
from scrapy_redisq.pipelines.database.probe import (
    copy_under,
    lacks_values,
    takes_another,
    takes_its_rows,
    variations,
)
from scrapy_redisq.pipelines.database.records import Record
from scrapy_redisq.pipelines.database.server import DatabaseServer
from scrapy_redisq.pipelines.database.tables import Tables
from scrapy_redisq.pipelines.database.upsert import write
from scrapy_redisq.pipelines.database.url import SETTING
from scrapy_redisq.pipelines.thread import OneThread
from scrapy_redisq.settings.sinks import SinkSettings

logger = logging.getLogger(__name__)


class _RecordsRow(Row):
    """A row that is several records: the item's own and those of nested items."""

    __slots__ = ("records",)

    def __init__(self, item: Any, key: str, records: list[Record]) -> None:
        super().__init__(item, key, {})
        self.records = records


class _RolledBack(Exception):
    """Raised in a transaction of which nothing is to stay."""


class DatabasePipeline(BatchPipeline):
    """Writes items by SQLAlchemy (``REDISQ_DATABASE_URL``), a batch a transaction.

    Rows have a key, from ``REDISQ_TABLES`` or made of the request and the item's position, and take
    the place of rows that have it already. One connection a worker, used in a thread of its own.
    """

    async def open(self) -> None:
        """Connect, make the tables that are known by now. Raises `RedisqError`."""
        settings = self.settings
        if not settings.database_url:
            raise SettingError(SETTING, "", "an SQLAlchemy URL; DatabasePipeline needs one")
        self.batch_rows = settings.database_batch
        self._server = DatabaseServer(
            settings.database_url, connect_timeout=settings.connect_timeout
        )
        self._thread = OneThread("redisq-database")
        await self._in_time(
            self._thread.run(self._prepare, settings.tables, _metadata(settings.metadata))
        )
        logger.info("Items go to %s", self._server.address)

    async def _in_time(self, opening: Coroutine[Any, Any, Any]) -> None:
        """Give up what hangs: drivers watch the time until a server has taken a connection, and a
        stopped one, or a pooler without its server, takes it."""
        silent = f"no answer for {self.silent_seconds:g} s"
        loop = asyncio.get_running_loop()
        warning = loop.call_later(self.silent_seconds, self._server.tell_waiting, silent)
        # The last attempt to connect may have begun just in time.
        most = self.settings.connect_timeout + engine.CONNECT_SECONDS
        try:
            await asyncio.wait_for(opening, most)
        except asyncio.TimeoutError:
            self._thread.end()
            del self._thread  # `close` would wait for it
            raise SinkUnavailable(
                f"{SETTING}: {self._server.address}: no answer for {most:g} s at start "
                "(REDISQ_CONNECT_TIMEOUT)"
            ) from None
        finally:
            warning.cancel()

    def _prepare(self, tables: Mapping[Any, Mapping[str, Any]], metadata: MetaData | None) -> None:
        def prepare() -> None:
            # Only a dialect that has connected knows MariaDB from MySQL.
            self._tables = Tables(tables, metadata, self._server.dialect)
            self._tables.prepare(self._begin)

        self._server.open(prepare)

    def needs_key(self, item: Any) -> bool:
        """Whether its table has no key of its own. Raises `SinkMismatch`."""
        return self._tables.take_keys(type(item))

    def row(self, item: Any, key: str) -> Row:
        """The records that the item becomes. Raises `RowRefused` or `SinkMismatch`."""
        return _RecordsRow(item, key, self._tables.records(item, key))

    async def write(self, rows: list[Row]) -> None:
        """One transaction, after one for tables that are new.

        Raises what `DatabaseServer.transaction` does.
        """
        await self._ask(self._write, rows)

    async def _ask(self, function: Any, *arguments: Any) -> Any:
        try:
            return await self._thread.run(function, *arguments)
        except asyncio.CancelledError:
            self._server.cancel()
            raise

    def _begin(self) -> AbstractContextManager[Connection]:
        return self._server.transaction(of_rows=False)

    def _write(self, rows: list[_RecordsRow]) -> None:
        self._tables.prepare(self._begin)
        with self._server.transaction() as connection:
            write(connection, [record for row in rows for record in row.records])

    def kinds(self, row: Any) -> Collection[object]:
        """The tables that it goes into."""
        return {record.target for record in row.records}

    async def probe(self, row: Row) -> bool:
        """Whether rows that are in the tables would be written again under the keys of this one,
        or this one without some of its values."""
        return bool(await self._ask(self._probe, row))

    def _probe(self, row: _RecordsRow) -> bool:
        def each(would: Callable[[Connection, Record], bool]) -> bool:
            return self._would(lambda connection: all(would(connection, r) for r in row.records))

        if any(map(lacks_values, row.records)):
            return True
        if not each(lambda connection, record: rolls_back(connection, record.target.table)):
            return False
        if each(copy_under) or each(takes_another):
            return True
        until = time.monotonic() + self.silent_seconds
        return each(takes_its_rows) and any(
            self._would(partial(_written, records))
            for records in variations(row.records)
            if time.monotonic() < until
        )

    def _would(self, work: Callable[[Connection], bool]) -> bool:
        """Whether something works, of which nothing is kept; raises `SinkError` if the database
        is away, or takes too long."""
        try:
            with self._server.transaction() as connection:
                worked = work(connection)
                raise _RolledBack
        except _RolledBack:
            return worked
        except (ConnectionLost, RowRefused, WriteFailed):
            return False

    async def close(self) -> None:
        """Disconnect."""
        if hasattr(self, "_thread"):
            try:
                await self._thread.run(self._server.close)
            finally:
                self._thread.end()


def _written(records: list[Record], connection: Connection) -> bool:
    write(connection, records)
    return True


def _metadata(path: str) -> MetaData | None:
    if not path:
        return None
    try:
        return cast("MetaData", load_object(path))  # which `Tables` looks at
    except (ImportError, NameError, ValueError, AttributeError) as error:
        raise SettingError(SinkSettings.metadata.name, path, f"an import path: {error}") from error
