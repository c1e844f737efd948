"""Dupefilters in Redis: `BloomDupeFilter` and `ExactDupeFilter`; the fingerprints of scrapy-redis.

Under `scrapy_redisq.Scheduler` their ``kind`` names the dupefilter of the frontier. Its exchange
finds duplicates, and nothing here connects. Under any other scheduler, such as Scrapy's own, they
work by themselves. Each request that the local cache does not know is one short call to Redis, and
Scrapy waits for it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from typing import TYPE_CHECKING, Any, ClassVar

import redis
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter, referer_str
from w3lib.url import canonicalize_url

from scrapy_redisq.errors import RedisqError, SettingError
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.names import seen_alone
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.seen import SeenCache, SeenFilter, probe, seen_filter
from scrapy_redisq.participation import why_alone
from scrapy_redisq.server.connection import Client, Server
from scrapy_redisq.settings.settings import RedisqSettings, open_server_of, project_folder

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Request

logger = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds without a call to Redis after one failed, so that an outage does not stop the crawl."""


class RedisqDupeFilter(BaseDupeFilter):
    """Base of the dupefilters. Use `BloomDupeFilter` or `ExactDupeFilter`.

    Alone, it keeps what it has seen under ``redisq:{NAME:0}:seen:alone:BACKEND`` (NAME:
    REDISQ_FRONTIER), shared by all processes and kept between runs. Delete these keys to start
    afresh. A Bloom filter keeps the error rate and capacity that it was begun with.

    While Redis cannot be used, requests that this process has not met count as new. Stat
    ``dupefilter/redis_errors`` counts them.
    """

    kind: ClassVar[str]
    """Either ``bloom`` or ``exact``."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._log_once = True
        self._uncounted = 0
        fingerprinter = crawler.request_fingerprinter
        assert fingerprinter is not None
        self._fingerprint = fingerprinter.fingerprint
        # Only Scrapy's own is known to look at nothing but method, URL and body.
        self._by_url = type(fingerprinter) is RequestFingerprinter
        self._recent = SeenCache()
        self._server: Server | None = None
        self._client: Client | None = None
        self._paused_until = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        """A dupefilter of this class, or Scrapy's own for a crawl that uses no Redis."""
        return RFPDupeFilter.from_crawler(crawler) if why_alone(crawler.settings) else cls(crawler)

    def open(self) -> None:
        """Connect. Only for use alone; waits up to REDISQ_CONNECT_TIMEOUT for the server.

        Raises `SettingError`, `ServerUnreachable`, `ServerUnsuitable` or `EmbeddedServerError`.
        """
        settings = RedisqSettings.read(self._crawler.settings)
        if settings.seen_ttl:
            takes = "0 without scrapy_redisq.Scheduler: what was seen is kept for good"
            raise SettingError(RedisqSettings.seen_ttl.name, settings.seen_ttl, takes)
        spider = self._crawler.spider or self._crawler.spidercls
        self._name = settings.frontier_name(spider.name, self._crawler)
        self._server = open_server_of(settings, project_folder())
        try:
            self._server.wait()
            self._server.check()
            self._client = self._server.client()
            self._seen = self._choose(self._client, settings)
        except BaseException:
            self.close("failed to open")
            raise
        logger.info(
            "%s: backend %s, keys %s%s",
            type(self).__name__,
            self._seen.name,
            seen_alone(self._name),
            self._seen.name,
        )

    def _choose(self, client: Client, settings: RedisqSettings) -> SeenFilter:
        backend, prefix = "exact", seen_alone(self._name)
        if self.kind != "exact":
            # A filter that exists is used on, whatever modules the server has by now.
            for backend in ("bitmap", "redisbloom"):
                if client.execute_command("EXISTS", prefix + backend):
                    break
            else:
                backend = "redisbloom" if probe(client, [prefix]) else "bitmap"
        return seen_filter(
            FrontierConfig(
                backend=backend,
                error_rate=settings.dupefilter_error_rate,
                capacity=settings.dupefilter_capacity,
            )
        )

    def request_seen(self, request: Request) -> bool:
        """Has an equal request been seen, by any process? If not, it has now. Never raises."""
        by_url = self._by_url and not request.body
        fingerprint = b"" if by_url else self._fingerprint(request)
        key: object = (request.method, request.url) if by_url else fingerprint
        if key in self._recent:
            return True
        seen = not self._record(fingerprint or self._fingerprint(request))
        self._recent.add(key)
        return seen

    def close(self, reason: str) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._server is not None:
            self._server.close()
            self._server = None

    def log(self, request: Request, spider: Spider) -> None:
        """Log a filtered request: the first one, or all with DUPEFILTER_DEBUG; count them all."""
        if self._debug or self._log_once:
            self._log_once = False
            seldom = (
                "no more duplicates will be shown (see DUPEFILTER_DEBUG to show all duplicates)"
            )
            why = f"(referer: {referer_str(request)})" if self._debug else f"- {seldom}"
            logger.debug(
                "Filtered duplicate request: %s %s", request, why, extra={"spider": spider}
            )
        self._uncounted += 1
        if self._server is not None:  # alone: nobody calls count_filtered
            self.count_filtered()

    def count_filtered(self) -> None:
        """Bring the stat ``dupefilter/filtered`` up to date. To be called now and then: to count
        each duplicate by itself would cost more than to find it."""
        if self._uncounted:
            self._count("dupefilter/filtered", self._uncounted)
            self._uncounted = 0

    # Redis

    def _record(self, fingerprint: bytes) -> bool:
        """Record it; is it new? Yes whenever that is not certain."""
        if time.monotonic() < self._paused_until:
            self._count("dupefilter/redis_errors")
            return True
        assert self._client is not None and self._server is not None, "open() comes first"
        generation = f"alone:{self._seen.name}"  # in a frontier it is a run
        call = calls.record_seen(self._name, generation, self._seen, [fingerprint])
        try:
            try:
                return execute(self._client, call) == [1]
            except (redis.ConnectionError, redis.TimeoutError):
                # The call may have been run and its reply lost. Once more, so that it is recorded
                # for sure; but that answer might mean the first call. At worst it is fetched twice.
                self._server.revive()
                execute(self._client, call)
                return True
        except (redis.RedisError, RedisqError, OSError) as error:
            self._paused_until = time.monotonic() + PAUSE
            self._count("dupefilter/redis_errors")
            logger.warning(
                "Redis cannot be used (%s): for %g s requests count as new unless this process "
                "has met them",
                self._server.redact(error),
                PAUSE,
            )
            return True

    def _count(self, stat: str, by: int = 1) -> None:
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(stat, by)


class BloomDupeFilter(RedisqDupeFilter):
    """Forgets nothing and takes a share of new URLs, REDISQ_DUPEFILTER_ERROR_RATE, for seen.

    By RedisBloom where the server has it, else by plain bitmaps. 4 to 9 bytes a URL at 1e-6.
    """

    kind = "bloom"


class ExactDupeFilter(RedisqDupeFilter):
    """By 64 bits of each fingerprint, without false positives but for their collisions.

    10 bytes a URL; a chance of 3e-4 that any two of 100 million URLs collide.
    """

    kind = "exact"


def scrapy_redis_fingerprint(request: Request) -> bytes:
    """What the dupefilter of scrapy-redis 0.9 knows a request by: the SHA-1 of JSON of method, URL
    and body."""
    known = {
        "body": (request.body or b"").hex(),
        "method": str(request.method),
        "url": canonicalize_url(request.url),
    }
    return hashlib.sha1(json.dumps(known).encode()).digest()


class ScrapyRedisFingerprinter:
    """``REQUEST_FINGERPRINTER_CLASS`` of a project that goes on with what the dupefilter of
    scrapy-redis has seen: see ``scrapy redisq migrate``."""

    def fingerprint(self, request: Request) -> bytes:
        return scrapy_redis_fingerprint(request)
