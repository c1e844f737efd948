"""What most tests of people's commands begin with: a frontier on an empty server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from lab.servers import RedisServer
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.limits import parse_limit
from tests.harness.worker import EXACT, NAME, Worker

Opener = Callable[..., Frontier]


@pytest.fixture
def open_frontier(redis_server: RedisServer) -> Iterator[Opener]:
    """Opens frontiers on an empty server, and closes them."""
    opened: list[Frontier] = []

    def open_(name: str = "books", **options: Any) -> Frontier:
        opened.append(Frontier.from_url(redis_server.url, name, **options))
        return opened[-1]

    yield open_
    for frontier in opened:
        frontier.close()


@pytest.fixture
def frontier(request: pytest.FixtureRequest) -> Iterator[Frontier]:
    """The frontier "books", on the server of the test."""
    each = "each_server" in request.fixturenames
    server: RedisServer = request.getfixturevalue("each_server" if each else "redis_server")
    with Frontier.from_url(server.url, NAME) as frontier:
        yield frontier


@pytest.fixture
def member(client: redis.Redis) -> Callable[..., Worker]:
    """Makes workers of "books" on `each_server`, with limits of the settings by slot."""

    def make(limits: dict[str, dict[str, Any]] | None = None, **options: Any) -> Worker:
        texts = {slot: parse_limit(given).to_text() for slot, given in (limits or {}).items()}
        return Worker(client, NAME, options.pop("config", EXACT), limits=texts, **options)

    return make
