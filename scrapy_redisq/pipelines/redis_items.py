"""Items in a Redis list or stream, for those who read them from there."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import redis

from scrapy_redisq.errors import (
    BatchTooLarge,
    RedisqError,
    SettingError,
    SinkMismatch,
    SinkUnavailable,
)
from scrapy_redisq.pipelines.batch import BatchPipeline, Row
from scrapy_redisq.pipelines.encoding import encode_row
from scrapy_redisq.server.access import hang_up
from scrapy_redisq.server.connection import AsyncClient, Server
from scrapy_redisq.settings.declared import SinkSettings
from scrapy_redisq.settings.settings import open_server_of, project_folder
from scrapy_redisq.tasks import cancel

logger = logging.getLogger(__name__)

ENCODED = "item"
"""Where a row has its item as bytes."""


class RedisPipeline(BatchPipeline):
    """Puts items into the Redis list or stream REDISQ_ITEMS_KEY, as scrapy-redis does.

    At least once: after a crash, or an answer that was lost, an item may be there twice. A stream's
    entry has the fields ``key``, the same then, and ``item``; in a list nothing tells. See
    ``docs/howto/redis-items.md`` for what a database does better.
    """

    batch_rows = 100  # a transaction is to be answered in time

    _server: Server | None = None
    _client: AsyncClient | None = None
    _following: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Connect and check the key. Raises `RedisqError`."""
        settings = self.settings
        self._target = settings.items_key % {"spider": self.spider_name}
        if not self._target:
            raise SettingError(SinkSettings.items_key.name, "", "a key's name")
        try:
            self._server = await self._open_server()
            self._client = self._server.async_client()
            self._following = asyncio.ensure_future(self._server.follow())
        except RedisqError as error:
            if not settings.items_url:
                raise
            # The server's errors name the frontier's setting.
            raise SinkUnavailable(str(error).replace("REDISQ_URL", "REDISQ_ITEMS_URL")) from None
        try:
            kind = await self._client.execute_command("TYPE", self._target)
        except (redis.RedisError, OSError) as error:
            raise self._translated(error) from None
        if kind not in {b"none", settings.items_type.encode()}:
            raise self._of_another_type()

    async def _open_server(self) -> Server:
        # Starting an embedded server takes a moment, which is not the event loop's.
        server = await asyncio.to_thread(
            open_server_of, self.settings, project_folder(), url=self.settings.items_url or None
        )
        try:
            await server.wait_async()
        except BaseException:
            await asyncio.to_thread(server.close)
            raise
        return server

    def row(self, item: Any, key: str) -> Row:
        """Raises `RowRefused` for an item that cannot be encoded."""
        return Row(item, key, {ENCODED: encode_row(Row(item, key))})

    async def write(self, rows: list[Row]) -> None:
        """Add the items in one transaction."""
        try:
            await self._send(rows)
        except (redis.RedisError, OSError) as error:
            if isinstance(error, (redis.ConnectionError, OSError)) and self._server:
                await asyncio.to_thread(self._server.revive)
            translated = self._translated(error)
            if isinstance(error, redis.TimeoutError) and len(rows) > 1:
                raise BatchTooLarge(str(translated)) from None
            raise translated from None

    async def _send(self, rows: list[Row]) -> None:
        assert self._client is not None  # open() has been called
        settings, key = self.settings, self._target
        async with self._client.pipeline(transaction=True) as pipe:
            if settings.items_type == "list":
                pipe.execute_command("RPUSH", key, *(row[ENCODED] for row in rows))
            else:
                for row in rows:
                    pipe.execute_command("XADD", key, "*", "key", row.key, "item", row[ENCODED])
            await pipe.execute()

    def _translated(self, error: Exception) -> Exception:
        # redis-py puts the command before the server's words, and with it the item. Since 7 the
        # words are the representation of a tuple.
        words = str(error).rpartition(" of pipeline caused error: ")[2]
        words = re.sub(r"""^\(["'](.*)["'],\)$""", r"\1", words)
        if words.startswith("WRONGTYPE"):
            return self._of_another_type()
        server = self._server
        return SinkUnavailable(
            f"items cannot be written to {server and server.address}: {type(error).__name__}: "
            f"{server.redact(words) if server else words}"
        )

    def _of_another_type(self) -> SinkMismatch:
        return SinkMismatch(
            f"the key {self._target!r} is no {self.settings.items_type}: give REDISQ_ITEMS_KEY "
            "another name, or REDISQ_ITEMS_TYPE the type that it has"
        )

    async def close(self) -> None:
        if self._following is not None:
            await cancel(self._following)
            self._following = None
        if self._client is not None:
            await hang_up(self._client)
            self._client = None
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
            self._server = None
