"""Settings of scrapy-redis, line by line, and what takes their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapy_redisq.errors import SettingError
from scrapy_redisq.ops.migration.old_frontier import PLACES, old_client
from scrapy_redisq.server.url import redact
from scrapy_redisq.settings.scrapy_redis import of_scrapy_redis
from scrapy_redisq.settings.setting import path_of


class NewLine(NamedTuple):
    """``old``: a line that is set. ``new``: the one in its place, or "". ``why``: what differs, or
    why there is no new one."""

    old: str
    new: str
    why: str = ""


_Rule = Callable[[Any], "tuple[str, str] | None"]
"""The new line and the reason for a value; None: the line is not one of scrapy-redis."""


def _gone(why: str) -> _Rule:
    return lambda value: ("", why)


def _renamed(name: str, why: str = "") -> _Rule:
    return lambda value: (f"{name} = {value!r}", why)


def _stays(name: str) -> _Rule:
    return _renamed(name, "it stays")


def _scheduler(value: Any) -> tuple[str, str] | None:
    if not of_scrapy_redis(path_of(value)):
        return None
    return 'ADDONS = {"scrapy_redisq.Addon": 500}', "the add-on sets SCHEDULER and DUPEFILTER_CLASS"


def _dupefilter(value: Any) -> tuple[str, str] | None:
    path = path_of(value)
    if not of_scrapy_redis(path):
        return None
    if path.startswith("scrapy_redis_bloomfilter"):
        return "", "the add-on sets scrapy_redisq.BloomDupeFilter, which grows when it is full"
    return (
        'REQUEST_FINGERPRINTER_CLASS = "scrapy_redisq.ScrapyRedisFingerprinter"',
        "only if what was seen is taken over (--seen fingerprinter). The add-on sets a Bloom "
        'filter; DUPEFILTER_CLASS = "scrapy_redisq.ExactDupeFilter" never errs, as the old one',
    )


def _queue(value: Any) -> tuple[str, str] | None:
    name = path_of(value).rpartition(".")[2]
    if name in {"FifoQueue", "SpiderQueue"}:
        return 'REDISQ_ORDER = "fifo"', "within a host and a priority, which the old queue ignored"
    if name in {"LifoQueue", "SpiderStack"}:
        return 'REDISQ_ORDER = "lifo"', "within a host and a priority, which the old queue ignored"
    if name in {"PriorityQueue", "SpiderPriorityQueue"}:
        why = "without it hosts take turns, each of them in order of priority"
        return 'REDISQ_SCHEDULING = "priority"', why
    return "", "a queue of one's own has no counterpart: the order is kept in Redis, by scripts"


def _flush(value: Any) -> tuple[str, str]:
    if str(value).lower() not in {"true", "1"}:
        return "", "an unfinished run is always resumed"
    why = "only when what was moved is crawled: the first worker forgets pushed requests, too"
    return "REDISQ_RESUME = False", why


def _pipelines(value: Any) -> tuple[str, str] | None:
    old = dict(value)
    if not any(of_scrapy_redis(path_of(one)) for one in old):
        return None
    new = {
        "scrapy_redisq.pipelines.RedisPipeline"
        if of_scrapy_redis(path_of(one))
        else path_of(one): place
        for one, place in old.items()
    }
    return f"ITEM_PIPELINES = {new!r}", ""


def _stats(value: Any) -> tuple[str, str] | None:
    if not of_scrapy_redis(path_of(value)):
        return None
    return "", "scrapy redisq status has the sums of all workers"


def _bits(value: Any) -> tuple[str, str]:
    capacity = min(10_000_000_000, max(1_000, int((1 << int(value)) * math.log(2) / 6)))
    return (
        f"REDISQ_DUPEFILTER_CAPACITY = {capacity}",
        "as many as fit in so many bits with 6 hashes",
    )


_TYPE = "the type of the feed's key is found"
_ENDS = "all workers end when everything is finished; with REDISQ_KEEP_ALIVE = True none does"

RULES: dict[str, _Rule] = {
    "SCHEDULER": _scheduler,
    "DUPEFILTER_CLASS": _dupefilter,
    "DUPEFILTER_DEBUG": _stays("DUPEFILTER_DEBUG"),
    "BLOOMFILTER_BIT": _bits,
    "BLOOMFILTER_HASH_NUMBER": _gone(
        "REDISQ_DUPEFILTER_ERROR_RATE says how often it errs, one in a million by default"
    ),
    "SCHEDULER_QUEUE_CLASS": _queue,
    "SCHEDULER_QUEUE_KEY": _gone("REDISQ_FRONTIER names all keys; by default it is the spider's"),
    "SCHEDULER_DUPEFILTER_KEY": _gone("REDISQ_FRONTIER names all keys"),
    "SCHEDULER_SERIALIZER": _gone("requests are always msgpack: no pickle is ever read"),
    "SCHEDULER_PERSIST": _gone(
        "an unfinished run always stays; a finished one is followed by a new one"
    ),
    "SCHEDULER_FLUSH_ON_START": _flush,
    "SCHEDULER_IDLE_BEFORE_CLOSE": _gone(_ENDS),
    "MAX_IDLE_TIME_BEFORE_CLOSE": _stays("MAX_IDLE_TIME_BEFORE_CLOSE"),
    "REDIS_START_URLS_KEY": _stays("REDIS_START_URLS_KEY"),
    "REDIS_START_URLS_AS_SET": _gone(_TYPE),
    "REDIS_START_URLS_AS_ZSET": _gone(_TYPE),
    "REDIS_START_URLS_BATCH_SIZE": _stays("REDIS_START_URLS_BATCH_SIZE"),
    "REDIS_ENCODING": _stays("REDIS_ENCODING"),
    "REDIS_DECODE_RESPONSES": _gone("answers of Redis are bytes"),
    "ITEM_PIPELINES": _pipelines,
    "REDIS_ITEMS_KEY": _renamed("REDISQ_ITEMS_KEY"),
    "REDIS_ITEMS_SERIALIZER": _gone("items are always JSON: docs/howto/redis-items.md"),
    "STATS_CLASS": _stats,
}
"""What becomes of each setting of scrapy-redis 0.9 and Scrapy-Redis-BloomFilter 0.8, but for
`PLACES`."""


def new_lines(settings: BaseSettings, spider: type[Spider] | None = None) -> Iterator[NewLine]:
    """The settings that are set, in the order of `RULES`. No password is among them."""
    for name, rule in RULES.items():
        if not settings.getpriority(name):
            continue  # Scrapy's own default, or not set
        value = settings[name]
        if made := rule(value):
            shown = dict(value) if name == "ITEM_PIPELINES" else value
            yield NewLine(f"{name} = {shown!r}", *made)
    places = [name for name in PLACES if settings.get(name)]
    for name in places:
        new, why = "", "a part of REDISQ_URL"
        if name == places[0]:
            try:
                new = f"REDISQ_URL = {old_client(settings)[1]!r}"
                why = "with user and password, which are not shown, TLS and timeouts"
            except SettingError as error:
                why = str(error)
        value = settings.getdict(name) if name == "REDIS_PARAMS" else settings[name]
        yield NewLine(f"{name} = {_shown(value)}", new, why)
    if spider is None:
        return
    for base in spider.__mro__:
        if of_scrapy_redis(path_of(base)):
            why = f"in its module: from scrapy_redisq import {base.__name__}"
            yield NewLine(f"class {spider.__name__}({base.__name__})", "", why)
            break


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = {name: "***" if "pass" in name else one for name, one in value.items()}
    return redact(repr(value))
