"""A worker that joins, as far as that needs no server."""

from __future__ import annotations

import asyncio

import pytest
from scrapy.settings import Settings

from scrapy_redisq.errors import ServerFull, with_causes
from scrapy_redisq.server.connection import open_server
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.connect import WorkerConnection


def test_where_scripts_are_refused_at_maxmemory_a_worker_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For longer than REDISQ_CONNECT_TIMEOUT, as those that have joined do, and says so once."""
    refusals = [ServerFull("Redis is at its maxmemory")] * 2

    async def join() -> str:
        if refusals:
            raise refusals.pop()
        return "joined"

    connection = WorkerConnection(RedisqSettings.read(Settings({"REDISQ_CONNECT_TIMEOUT": 0})))
    server = open_server("redis://127.0.0.1:1")
    assert asyncio.run(connection._persist(server, join)) == "joined"
    (warning,) = caplog.messages
    assert "maxmemory" in warning


def test_a_circle_of_causes() -> None:
    """An error that is raised again as the cause of what it had led to has an end, too."""
    first, second = ValueError(), KeyError()
    first.__context__, second.__cause__ = second, first
    assert list(with_causes(first)) == [first, second]
