"""A worker of a frontier without Scrapy's engine, and the spider of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from scrapy import Spider

from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.seen import SeenFilter, seen_filter
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.terms import Terms

NAME = "books"


class Books(Spider):
    """The spider of the requests."""

    name = NAME

    def parse_item(self, response: Any) -> None:
        """Their callback."""


def join(
    client: redis.Redis,
    worker: str,
    backend: str,
    limits: Mapping[str, str] | None = None,
) -> tuple[ShardSession, SeenFilter]:
    """Register a worker, beginning the run if it is the first."""
    config = FrontierConfig(dupefilter="exact" if backend == "exact" else "bloom", backend=backend)
    joined = execute(
        client,
        calls.join(
            NAME, 0, calls.crawl("run1"), config, calls.Registration(worker, 600.0, limits=limits)
        ),
    )
    seen = seen_filter(joined.config)
    nothing: Any = None
    terms = Terms(NAME, config, 600, 5, 100, 0)
    member = ShardSession(RunSession(nothing, terms), 0, joined, worker)
    return member, seen
