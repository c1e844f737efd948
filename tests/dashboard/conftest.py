from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lab.servers import RedisServer
from scrapy_redisq.control import Frontier
from tests.dashboard.served import Served
from tests.harness.worker import NAME


@pytest.fixture(scope="module")
def _served(_one_server: RedisServer) -> Iterator[Served]:
    served = Served(_one_server.url)
    yield served
    served.close()


@pytest.fixture
def dashboard(redis_server: RedisServer, _served: Served) -> Served:
    """One for the module; the server is emptied before each test."""
    _served.crawls.names.forget()
    _served.crawls.doctor.forget()
    for crawl in _served.crawls._crawls.values():
        crawl.changed()
    return _served


@pytest.fixture
def frontier(redis_server: RedisServer) -> Iterator[Frontier]:
    with Frontier.from_url(redis_server.url, NAME) as frontier:
        yield frontier


@pytest.fixture
def guarded(redis_server: RedisServer) -> Iterator[Callable[..., Served]]:
    """Makes dashboards with rules of their own."""
    made: list[Served] = []

    def make(rules: object) -> Served:
        made.append(Served(redis_server.url, rules))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for served in made:
        served.close()
