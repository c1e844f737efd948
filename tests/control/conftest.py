"""What most tests of people's commands begin with: a frontier on an empty server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.servers import RedisServer
from scrapy_redisq.control import Frontier

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
