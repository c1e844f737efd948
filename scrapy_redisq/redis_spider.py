"""`RedisSpider` and `RedisCrawlSpider` of scrapy-redis: a spider moves by its import alone.

The worker reads their feeds as any other (``worker/feeder.py``); here are the attributes, and how
lines are read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cached_property
from typing import Any, cast

import redis
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.http import FormRequest, Request
from scrapy.spiders import CrawlSpider

from scrapy_redisq.errors import SettingError
from scrapy_redisq.settings.declared import CrawlSettings
from scrapy_redisq.settings.settings import RedisqSettings, open_server_of, project_folder
from scrapy_redisq.settings.start_urls import keys_of


class RedisMixin:
    """A spider whose requests come from Redis keys: ``redis_key``, one or several, those to be read
    first in front (default: REDIS_START_URLS_KEY, ``"%(name)s:start_urls"``).

    ``redis_batch_size`` lines are read at a time (default: CONCURRENT_REQUESTS), in
    ``redis_encoding`` (REDIS_ENCODING, UTF-8). The crawl ends when all of it was idle for
    ``max_idle_time`` seconds (MAX_IDLE_TIME_BEFORE_CLOSE; 0: never).
    """

    redis_key: str | Sequence[str] | None = None
    redis_batch_size: int | None = None
    redis_encoding: str | None = None
    max_idle_time: float | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Any:
        """As Scrapy does; then `setup_redis` is called."""
        spider = super().from_crawler(crawler, *args, **kwargs)  # type: ignore[misc]
        spider.setup_redis(crawler)
        return spider

    def setup_redis(self, crawler: Crawler | None = None) -> None:
        """The spider was made: one `redis_key` has its full name from here on. To be overridden,
        for example to fill the feed."""
        settings: Any = (crawler or self.crawler).settings  # type: ignore[attr-defined]
        if not isinstance(self.redis_key, (list, tuple)):
            with contextlib.suppress(SettingError):  # the worker tells of it
                keys = keys_of(cast(Spider, self), settings)
                if len(keys) == 1 and "%" not in keys[0]:
                    self.redis_key = keys[0]

    @cached_property
    def server(self) -> redis.Redis:
        """A client of the server of REDISQ_URL, with bytes as answers, as redis-py has it: it
        blocks. It is closed when the crawl is over. Raises `SettingError` for a cluster."""
        crawler: Any = self.crawler  # type: ignore[attr-defined]
        server = open_server_of(RedisqSettings.read(crawler.settings), project_folder())
        if server.is_cluster:
            takes = "one server where a spider uses its `server`; make a redis.RedisCluster"
            raise SettingError(CrawlSettings.url.name, server.address, takes)
        client = cast(redis.Redis, server.client())

        def close() -> None:
            client.close()
            server.close()

        crawler.signals.connect(close, signals.engine_stopped, weak=False)
        return client

    def next_requests(self) -> Iterable[Request]:
        """None, for a `start_requests` that returns them: the worker reads the feed."""
        return ()

    async def start(self) -> AsyncIterator[Any]:
        """The requests of `start_requests`; ``start_urls`` is not read."""
        for request in self.start_requests():
            yield request

    def start_requests(self) -> Iterable[Request]:
        """Requests beside those of the feed: none."""
        return ()

    def make_request_from_data(self, data: bytes) -> Request | Iterable[Request] | None:
        """The requests of one line: a URL, or a JSON object with ``url``, ``method`` and ``meta``,
        whose other fields are form data. None of them is filtered.

        To be overridden for other lines. A line is dropped where nothing is returned. It becomes a
        dead letter where an exception is raised.
        """
        settings: Any = self.crawler.settings  # type: ignore[attr-defined]
        encoding = self.redis_encoding or settings.get("REDIS_ENCODING") or "utf-8"
        text = data.decode(encoding)
        try:
            fields = json.loads(text)
        except json.JSONDecodeError:
            return FormRequest(text.strip(), dont_filter=True)
        if not isinstance(fields, dict) or not fields.get("url"):
            raise ValueError("takes a URL, or a JSON object with a 'url'")
        url, meta = fields.pop("url"), fields.pop("meta", None)
        method = str(fields.pop("method", "GET")).upper()
        return FormRequest(url, dont_filter=True, method=method, formdata=fields, meta=meta)


class RedisSpider(RedisMixin, Spider):
    """A spider that is fed from Redis."""


class RedisCrawlSpider(RedisMixin, CrawlSpider):
    """A spider with rules that is fed from Redis."""
