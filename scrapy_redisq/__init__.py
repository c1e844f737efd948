"""A frontier in Redis for many ``scrapy crawl`` processes.

The map: its rooms are the modules and packages beside this file, on floors. A room imports from
lower floors alone, so rooms of one floor never import each other::

    addon  middlewares/  pipelines/  commands/    what a project names, and what people type
    ops/                                          beside the crawls: dashboard, doctor, metrics,
                                                  workers of one machine
    scheduler                                     Scrapy's interface
    worker/  control/                             one crawl process; whoever is none
    dupefilter  feed_exports  redis_spider        what Scrapy loads by name, with any scheduler;
                                                  spiders as scrapy-redis has them
    participation  files/                         which crawls join a frontier at all; items as
                                                  files
    settings/                                     declared, checked, read once
    _scrapy/  server/  frontier/  serialization/  Scrapy's insides; Redis; the protocol, which knows
                                                  neither Scrapy nor settings; requests as bytes
    errors  reasons  tasks

``docs/explanation/architecture.md`` says more, with a picture.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy_redisq.addon import Addon as Addon
    from scrapy_redisq.control import Frontier as Frontier
    from scrapy_redisq.dupefilter import BloomDupeFilter as BloomDupeFilter
    from scrapy_redisq.dupefilter import ExactDupeFilter as ExactDupeFilter
    from scrapy_redisq.dupefilter import ScrapyRedisFingerprinter as ScrapyRedisFingerprinter
    from scrapy_redisq.feed_exports import feed_uri_params as feed_uri_params
    from scrapy_redisq.middlewares.retry import RedisqBackOffMiddleware as RedisqBackOffMiddleware
    from scrapy_redisq.middlewares.retry import RedisqRetryMiddleware as RedisqRetryMiddleware
    from scrapy_redisq.middlewares.robots import (
        RedisqRobotsTxtMiddleware as RedisqRobotsTxtMiddleware,
    )
    from scrapy_redisq.redis_spider import RedisCrawlSpider as RedisCrawlSpider
    from scrapy_redisq.redis_spider import RedisSpider as RedisSpider
    from scrapy_redisq.scheduler import Scheduler as Scheduler

__version__ = "0.1.0"

# Imported when first used: every `scrapy` command of the environment imports this package.
_HOMES = {
    "Addon": "scrapy_redisq.addon",
    "BloomDupeFilter": "scrapy_redisq.dupefilter",
    "ExactDupeFilter": "scrapy_redisq.dupefilter",
    "Frontier": "scrapy_redisq.control",
    "RedisCrawlSpider": "scrapy_redisq.redis_spider",
    "RedisSpider": "scrapy_redisq.redis_spider",
    "RedisqBackOffMiddleware": "scrapy_redisq.middlewares.retry",
    "RedisqRetryMiddleware": "scrapy_redisq.middlewares.retry",
    "RedisqRobotsTxtMiddleware": "scrapy_redisq.middlewares.robots",
    "Scheduler": "scrapy_redisq.scheduler",
    "ScrapyRedisFingerprinter": "scrapy_redisq.dupefilter",
    "feed_uri_params": "scrapy_redisq.feed_exports",
}

__all__ = [
    "Addon",
    "BloomDupeFilter",
    "ExactDupeFilter",
    "Frontier",
    "RedisCrawlSpider",
    "RedisSpider",
    "RedisqBackOffMiddleware",
    "RedisqRetryMiddleware",
    "RedisqRobotsTxtMiddleware",
    "Scheduler",
    "ScrapyRedisFingerprinter",
    "feed_uri_params",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
