from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from lab.servers import RedisServer
from scrapy_redisq.ops.dashboard.guard import Rules
from tests.dashboard.served import Served


@pytest.fixture(scope="module")
def _served(_server_of: Callable[[str], RedisServer]) -> Iterator[Served]:
    with contextlib.closing(Served(_server_of("").url)) as served:
        yield served


@pytest.fixture
def dashboard(redis_server: RedisServer, _served: Served) -> Served:
    """One for the module; the server is emptied before each test."""
    _served.forget()
    return _served


@pytest.fixture
def guarded(redis_server: RedisServer) -> Iterator[Callable[[Rules], Served]]:
    """Makes dashboards with rules of their own."""
    with contextlib.ExitStack() as made:
        yield lambda rules: made.enter_context(contextlib.closing(Served(redis_server.url, rules)))
