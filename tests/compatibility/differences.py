"""What differs from Scrapy's own scheduler, and why. What is not listed here must be the same."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.compatibility.comparison import Found


@dataclass(frozen=True)
class Difference:
    """One row: what the spider ``spider`` does otherwise with ``workers`` ("one", "two", "*").

    All three are patterns; ``what`` is "pages", "items", "stat NAME" or "log ENTRY". A row that is
    ``certain`` is seen in every comparison in which its spiders are crawled; others now and then.
    """

    spider: str
    workers: str
    what: str
    reason: str
    certain: bool = True

    def explains(self, found: Found) -> bool:
        return (
            fnmatchcase(found.spider, self.spider)
            and fnmatchcase(found.mode, self.workers)
            and fnmatchcase(found.what, self.what)
        )


_KNOWN = "Links to start requests are duplicates: other workers' start requests must be, too."
_LETTER = "What fails for good is kept as a dead letter, and said."
_OWN_START = "Each worker reads start(); what another one has asked for already is a duplicate."
_OWN_STATS = "Stats, signals and monitors are each worker's own."
_ORDER = "Pages come in another order."
_TROUBLE = (
    "429, 503 and time-outs are the slot's trouble: RedisqBackOffMiddleware, nearer to the "
    "downloader than what counts responses and retries, sends the request back."
)
_FILES = (
    "Media pipelines remember in their own process what they have fetched: another worker finds "
    "it up to date, and asks for what is missing again."
)
_BYTES = "Ports and referers are longer or shorter."
_SUFFIXES = "Where the list of public suffixes cannot be fetched, the first crawl ever says so."
_LOG = "log WARNING scrapy_redisq.worker.page"

DIFFERENCES = [
    Difference("*", "*", "stat scheduler/*queued/memory", "The queue is in Redis."),
    Difference("*", "*", "stat scheduler/*queued/redis", "The queue is in Redis."),
    Difference("*", "two", "stat dupefilter/filtered", _OWN_START),
    Difference("*", "*", f"{_LOG} Dead letter *", _LETTER, certain=False),
    Difference(
        "*",
        "*",
        "log WARNING scrapy_redisq.worker.leaving Frontier * dead letter*",
        _LETTER,
        certain=False,
    ),
    Difference("*", "*", "stat request_depth_max", _ORDER, certain=False),
    Difference("*", "*", "stat downloader/*_bytes", _BYTES, certain=False),
    Difference("*", "*", "log WARNING *metacopy*", _ORDER, certain=False),
    Difference("*", "*", "log WARNING tldextract *", _SUFFIXES, certain=False),
    Difference("back_to_start", "*", "*", _KNOWN),
    Difference("unavailable", "*", "stat downloader/response*", _TROUBLE),
    Difference("unavailable", "*", "stat retry/*", _TROUBLE),
    Difference("unavailable", "*", "stat scheduler/enqueued", _TROUBLE),
    Difference("files", "two", "*", _FILES, certain=False),
    Difference("start_items", "two", "items", "Items of start() come once for each worker."),
    Difference("start_items", "two", "stat item_scraped_count", "The same."),
    Difference("signals", "two", "stat signals/*", _OWN_STATS),
    Difference("monitored", "two", "log ERROR monitored *", _OWN_STATS),
    Difference("monitored", "two", "stat spidermon/*", _OWN_STATS),
]
