"""Items into a database: each of them one row, however often its page is delivered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, cast

from scrapy.utils.misc import load_object
from sqlalchemy import MetaData

from scrapy_redisq.errors import SettingError, SinkUnavailable
from scrapy_redisq.pipelines.batch import BatchPipeline, Row
from scrapy_redisq.pipelines.database import engine
from scrapy_redisq.pipelines.database.server import DatabaseServer
from scrapy_redisq.pipelines.database.tables import Tables
from scrapy_redisq.pipelines.database.upsert import Record, write, write_nothing
from scrapy_redisq.pipelines.database.url import SETTING
from scrapy_redisq.settings.declared import SinkSettings

logger = logging.getLogger(__name__)


class _RecordRow(Row):
    """A row as the record that it becomes."""

    __slots__ = ("record",)

    def __init__(self, item: Any, key: str, record: Record) -> None:
        super().__init__(item, key, {})
        self.record = record


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
        server = DatabaseServer(settings.database_url, connect_timeout=settings.connect_timeout)
        metadata = _metadata(settings.metadata)
        # Drivers watch the time until a server has taken a connection. A stopped one, or a pooler
        # without its server, takes it.
        silent = f"no answer for {self.silent_seconds:g} s"
        loop = asyncio.get_running_loop()
        warning = loop.call_later(self.silent_seconds, server.tell_waiting, silent)
        # The last attempt to connect may have begun just in time.
        most = settings.connect_timeout + engine.CONNECT_SECONDS
        preparing = self._batches.call(self._prepare, server, settings.tables, metadata)
        try:
            await asyncio.wait_for(preparing, most)
        except asyncio.TimeoutError:
            raise SinkUnavailable(
                f"{SETTING}: {server.address}: no answer for {most:g} s at start "
                "(REDISQ_CONNECT_TIMEOUT)"
            ) from None
        finally:
            warning.cancel()
        self._server = server  # which `close` waits for
        logger.info("Items go to %s", server.address)

    def _prepare(
        self,
        server: DatabaseServer,
        tables: Mapping[Any, Mapping[str, Any]],
        metadata: MetaData | None,
    ) -> None:
        def prepare() -> None:
            # Only a dialect that has connected knows MariaDB from MySQL.
            self._tables = Tables(tables, metadata, server.dialect)
            self._tables.prepare(server.begin)

        server.open(prepare)

    def row(self, item: Any, key: str) -> Row:
        """The record that the item becomes. Raises `RowRefused` or `SinkMismatch`."""
        return _RecordRow(item, key, self._tables.record(item, key))

    async def write(self, rows: list[Row]) -> None:
        """One transaction, after one for tables that are new.

        Raises what `DatabaseServer.transaction` does.
        """
        await self._batches.call(self._write, rows)

    def _write(self, rows: list[_RecordRow]) -> None:
        self._tables.prepare(self._server.begin)
        with self._server.transaction() as connection:
            write(connection, [row.record for row in rows])

    def kind(self, row: Any) -> object:
        """The table that it goes into."""
        return row.record.target

    async def takes_others(self, row: Row, others: list[Row]) -> bool:
        """Write them and the row's own statement without a row, which needs the table, its columns
        and the rights as well; nothing of it is kept."""
        await self._batches.call(self._try_others, row, others)
        return True

    def _try_others(self, row: _RecordRow, others: list[_RecordRow]) -> None:
        with contextlib.suppress(_RolledBack), self._server.transaction() as connection:
            write(connection, [other.record for other in others])
            write_nothing(connection, row.record)
            raise _RolledBack

    async def close(self) -> None:
        """Disconnect."""
        if hasattr(self, "_server"):
            await self._batches.call(self._server.close)


def _metadata(path: str) -> MetaData | None:
    if not path:
        return None
    try:
        return cast("MetaData", load_object(path))  # which `Tables` looks at
    except (ImportError, NameError, ValueError, AttributeError) as error:
        raise SettingError(SinkSettings.metadata.name, path, f"an import path: {error}") from error
