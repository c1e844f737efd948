"""`RedisSpider` and `RedisCrawlSpider` of scrapy-redis: a spider moves by its import alone.

The worker reads their feeds as any other (``worker/feeder.py``); here are the attributes, and how
lines are read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from scrapy import Spider
from scrapy.http import FormRequest, Request
from scrapy.spiders import CrawlSpider


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
