"""One frontier in Redis for many ``scrapy crawl`` processes.

Layers, top to bottom; imports point down only::

    addon, commands, feeds                           what a user touches
    pipelines/                                       items into databases, files, Redis
    retry, backoff, robots                           downloader middlewares over the scheduler
    scheduler, session, inbox, dupefilter, _scrapy   Scrapy's interfaces
    slots, turns, outcomes                           limits and trouble of slots
    frontier/                                        the protocol: knows Redis, knows no Scrapy
    participation                                    which crawls join a frontier at all
    connection, suitability, embedded/               servers: clients, what one must be, our own
    seeds, serializer, entries, values, delays       requests as bytes, and how long they wait
    redis_url, settings, fleet_limits, setting_table, checks, limits, errors
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_redisq.addon import Addon as Addon
    from scrapy_redisq.backoff import RedisqBackOffMiddleware as RedisqBackOffMiddleware
    from scrapy_redisq.dupefilter import BloomDupeFilter as BloomDupeFilter
    from scrapy_redisq.dupefilter import ExactDupeFilter as ExactDupeFilter
    from scrapy_redisq.feeds import feed_uri_params as feed_uri_params
    from scrapy_redisq.frontier import Frontier as Frontier
    from scrapy_redisq.retry import RedisqRetryMiddleware as RedisqRetryMiddleware
    from scrapy_redisq.robots import RedisqRobotsTxtMiddleware as RedisqRobotsTxtMiddleware
    from scrapy_redisq.scheduler import Scheduler as Scheduler

__version__ = "0.1.0"

# Imported when first used: every `scrapy` command of the environment imports this package.
_HOMES = {
    "Addon": "scrapy_redisq.addon",
    "BloomDupeFilter": "scrapy_redisq.dupefilter",
    "ExactDupeFilter": "scrapy_redisq.dupefilter",
    "Frontier": "scrapy_redisq.frontier",
    "RedisqBackOffMiddleware": "scrapy_redisq.backoff",
    "RedisqRetryMiddleware": "scrapy_redisq.retry",
    "RedisqRobotsTxtMiddleware": "scrapy_redisq.robots",
    "Scheduler": "scrapy_redisq.scheduler",
    "feed_uri_params": "scrapy_redisq.feeds",
}

__all__ = [
    "Addon",
    "BloomDupeFilter",
    "ExactDupeFilter",
    "Frontier",
    "RedisqBackOffMiddleware",
    "RedisqRetryMiddleware",
    "RedisqRobotsTxtMiddleware",
    "Scheduler",
    "feed_uri_params",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
