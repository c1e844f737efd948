"""Items in Redis lists and streams: what they look like, the cap, and servers that go away."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import redis
import scrapy
from scrapy.crawler import Crawler

from lab.servers import RedisServer, any_server, free_port, full
from scrapy_redisq.errors import (
    BatchTooLarge,
    RedisqError,
    RowRefused,
    SettingError,
    SinkMismatch,
    SinkUnavailable,
)
from scrapy_redisq.pipelines import RedisPipeline
from tests.harness.in_loop import in_a_loop
from tests.harness.pipelines import opened, write_all

KEY = "books:items"
DOCS = Path(__file__).parents[2] / "docs/howto/redis-items.md"


class Title(str):
    """As parsers of HTML return them."""

    __slots__ = ()


@dataclass
class Book:
    url: str
    title: Any = None


def write(url: str, *batches: list[Any], **settings: Any) -> None:
    write_all(RedisPipeline, *batches, REDISQ_URL=url, **settings)


def entries(server: RedisServer, key: str = KEY) -> list[dict[bytes, bytes]]:
    """What a list or a stream holds; items of a list are shown as entries without a key."""
    with server.client() as client:
        if client.type(key) == b"stream":
            return [fields for _, fields in client.xrange(key)]
        return [{b"item": item} for item in client.lrange(key, 0, -1)]


def items(server: RedisServer, key: str = KEY) -> list[Any]:
    return [json.loads(entry[b"item"]) for entry in entries(server, key)]


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_round_trip(redis_server: RedisServer, kind: str) -> None:
    """Items are there in their order, and values that are not JSON as their nearest kin; the
    entries of a stream have the row's key."""
    noon = datetime(2026, 9, 1, 12, tzinfo=timezone.utc)
    kin = {
        "day": (date(2026, 9, 1), "2026-09-01"),
        "time": (noon, "2026-09-01T12:00:00Z"),
        "price": (Decimal("51.77"), "51.77"),
        "set": ({5}, [5]),
        "bytes": (b"\xff", "/w=="),
        "path": (Path("/a"), "/a"),
        Title("title"): (Title("t"), "t"),
    }
    batch = [
        {"url": "ü\0", "n": 1, "none": None, "nested": {"a": [1.5, True]}},
        Book("u", Book("v", [Title("x")])),
        {name: value for name, (value, _) in kin.items()},
    ]
    write(redis_server.url, batch, [{"n": 2}], REDISQ_ITEMS_TYPE=kind)
    assert items(redis_server) == [
        batch[0],
        {"url": "u", "title": {"url": "v", "title": ["x"]}},
        {name: stored for name, (_, stored) in kin.items()},
        {"n": 2},
    ]
    keys = [entry.get(b"key") for entry in entries(redis_server)]
    given = [f"{n:032}".encode() for n in (0, 1, 2, 0)]
    assert keys == (given if kind == "stream" else [None] * 4)


ODD = datetime(1890, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=21, seconds=10)))


@pytest.mark.parametrize(
    "value",
    [
        *(object(), "\ud800", [{"x": object()}], float("nan"), [{"a": (float("-inf"),)}]),
        *({1: "a", "1": "b"}, {Title("a"): {None: 1, "null": 2}}, Book("u", {True: 1, "1": 2})),
        *({float("inf"): 1}, MappingProxyType({"x": float("nan")}), {0.5, float("inf")}),
        *(ODD, {"t": ODD.timetz()}),
    ],
    ids=repr,
)
def test_what_json_would_change_is_refused(value: Any) -> None:
    """NaN would be null, of two keys with one text one would be gone, and a zone's offset would be
    rounded to minutes."""
    pipeline = RedisPipeline(Crawler(scrapy.Spider))
    with pytest.raises(RowRefused, match=r"^field 'x': ") as caught:
        pipeline.row({"url": "u", "x": value}, "k")
    str(caught.value).encode()
    pipeline.row({"url": "u", "x": {1: 0.5, "2": None, Title("3"): []}}, "k")


@pytest.mark.parametrize("kind", ["list", "stream"])
@in_a_loop
async def test_key_of_another_type(
    redis_server: RedisServer, one_client: redis.Redis, kind: str
) -> None:
    """A key that is something else ends the crawl: at the start, and when it becomes so."""
    given = {"REDISQ_URL": redis_server.url, "REDISQ_ITEMS_TYPE": kind}
    one_client.set(KEY, "x")
    with pytest.raises(SinkMismatch, match=f"'{KEY}' is no {kind}: give REDISQ_ITEMS_KEY"):
        async with opened(RedisPipeline, **given):
            pass
    one_client.delete(KEY)
    async with opened(RedisPipeline, **given) as pipeline:
        one_client.set("other:items", "x")
        rows = [pipeline.row({"n": 1}, "k")]
        pipeline._target = "other:items"
        with pytest.raises(SinkMismatch, match="REDISQ_ITEMS_TYPE"):
            await pipeline.write(rows)


def test_documented_rights(redis_server: RedisServer, one_client: redis.Redis) -> None:
    """A user with those of the document can write lists and streams, and none of them is idle."""
    (sentence,) = re.findall(r"restricted rights needs (.*?)\.\n", DOCS.read_text(), re.S)
    named = {name.lower() for name in re.findall(r"`([A-Z]+)`", sentence)}
    url = redis_server.url.replace("://", "://writer:pw@")
    rights = ["-@all", *(f"+{name}" for name in sorted(named))]
    one_client.acl_setuser(
        "writer", enabled=True, passwords=["+pw"], keys=[KEY, "s"], commands=rights
    )
    one_client.config_resetstat()
    for kind, key in (("list", KEY), ("stream", "s")):
        write(url, [{"n": 1}, {"n": 2}], REDISQ_ITEMS_TYPE=kind, REDISQ_ITEMS_KEY=key)
    called = {name.lower() for name in one_client.info("commandstats")}
    one_client.acl_deluser("writer")
    assert named <= {name.removeprefix("cmdstat_") for name in called}


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    with RedisServer(any_server(), password="sesame", aof=True) as server:
        yield server


@in_a_loop
async def test_a_server_that_is_full_or_away(own_server: RedisServer) -> None:
    """Redis at its maxmemory takes nothing of the batch; later it does, and so it does when it has
    been restarted. No item is in the error, and no password."""
    async with opened(RedisPipeline, REDISQ_URL=own_server.url) as pipeline:
        rows = [pipeline.row({"n": n, "body": "treasure"}, "k") for n in range(3)]
        with own_server.client() as client, full(client):
            with pytest.raises(SinkUnavailable, match="memory") as caught:
                await pipeline.write(rows)
            assert "treasure" not in str(caught.value)
            assert client.exists(KEY) == 0
        await pipeline.write(rows[:2])
        own_server.kill()
        with pytest.raises(SinkUnavailable) as caught:
            await pipeline.write(rows[2:])
        assert "sesame" not in str(caught.value)
        own_server.start()
        await pipeline.write(rows[2:])
    assert [item["n"] for item in items(own_server)] == [0, 1, 2]


@in_a_loop
async def test_a_transaction_that_is_not_answered_in_time(own_server: RedisServer) -> None:
    """Many items may be too many; one is not."""
    async with opened(RedisPipeline, REDISQ_URL=f"{own_server.url}?socket_timeout=0.2") as pipeline:
        rows = [pipeline.row({"n": n}, "k") for n in range(2)]
        with own_server.client() as client:
            client.client_pause(60_000)
        with pytest.raises(BatchTooLarge):
            await pipeline.write(rows)
        with pytest.raises(SinkUnavailable) as caught:
            await pipeline.write(rows[1:])
        assert not isinstance(caught.value, BatchTooLarge)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"REDISQ_ITEMS_KEY": ""}, SettingError, "REDISQ_ITEMS_KEY"),
        ({"REDISQ_ITEMS_URL": "redis://:sesame@127.0.0.1:{free}"}, SinkUnavailable, "ITEMS_URL"),
        ({"REDISQ_ITEMS_URL": "redis://:wrong@127.0.0.1:{port}"}, SinkUnavailable, "ITEMS_URL"),
        ({"REDISQ_ITEMS_URL": "redis://:sesame@127.0.0.1/x"}, SinkUnavailable, "ITEMS_URL"),
    ],
)
def test_errors_at_start(
    own_server: RedisServer, settings: dict[str, str], error: type[RedisqError], words: str
) -> None:
    """What is wrong is said by the name of the setting, without the password."""
    given = {
        name: value.format(free=free_port(), port=own_server.port)
        for name, value in settings.items()
    }
    with pytest.raises(error, match=words) as caught:
        write(own_server.url, [], REDISQ_CONNECT_TIMEOUT=0.2, **given)
    assert "sesame" not in str(caught.value)
    assert "wrong@" not in str(caught.value)
