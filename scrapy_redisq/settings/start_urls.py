"""The feeds of a crawl: keys that any client of Redis fills, from REDISQ_FEEDS and from what
scrapy-redis calls `redis_key`, `REDIS_START_URLS_KEY` and so on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scrapy import Spider

from scrapy_redisq.settings import checks
from scrapy_redisq.settings.setting import SettingsSource
from scrapy_redisq.settings.settings import RedisqSettings

START_URLS_KEY = "%(name)s:start_urls"
"""Of a spider with a `redis_key` that is None."""

_IDLE = checks.seconds(0, checks.YEAR)


@dataclass(frozen=True)
class Feed:
    """``batch`` lines are read at a time; ``url``: of the server, "" is that of REDISQ_URL."""

    key: str
    url: str
    batch: int


def feeds_of(spider: Spider, settings: RedisqSettings, source: SettingsSource) -> list[Feed]:
    """The feeds of a spider, those to be read first in front. Raises `SettingError`."""
    batch = _first(
        ("redis_batch_size", getattr(spider, "redis_batch_size", None)),
        ("REDIS_START_URLS_BATCH_SIZE", source.get("REDIS_START_URLS_BATCH_SIZE")),
        check=checks.feed_batch,
        default=max(1, min(int(source.get("CONCURRENT_REQUESTS") or 16), 1_000)),
    )
    options: dict[str, dict[str, Any]] = {key: {} for key in keys_of(spider, source)}
    options |= {key % _names(spider): given for key, given in settings.feeds.items()}
    return [
        Feed(key, given.get("url", ""), given.get("batch", batch)) for key, given in options.items()
    ]


def keys_of(spider: Spider, source: SettingsSource) -> list[str]:
    """The keys of a spider that has a `redis_key`. Raises `SettingError`."""
    if not hasattr(spider, "redis_key"):
        return []
    name, keys = "redis_key", spider.redis_key
    if keys is None:
        name, keys = "REDIS_START_URLS_KEY", source.get("REDIS_START_URLS_KEY")
    listed = _listed(START_URLS_KEY if keys is None else keys)
    return [checks.feed_key.read(name, key) % _names(spider) for key in listed]


def _names(spider: Spider) -> dict[str, str]:
    return {"name": spider.name, "spider": spider.name}


def max_idle_of(spider: Spider, source: SettingsSource) -> float:
    """Seconds after which a crawl with feeds ends when all of it is idle; 0: never."""
    return _first(
        ("max_idle_time", getattr(spider, "max_idle_time", None)),
        ("MAX_IDLE_TIME_BEFORE_CLOSE", source.get("MAX_IDLE_TIME_BEFORE_CLOSE")),
        check=_IDLE,
        default=0.0,
    )


def _first(*given: tuple[str, Any], check: checks.Check[checks.T], default: checks.T) -> checks.T:
    for name, value in given:
        if value is not None:
            return check.read(name, value)
    return default


def _listed(keys: Any) -> Sequence[Any]:
    return keys if isinstance(keys, (list, tuple)) else [keys]
