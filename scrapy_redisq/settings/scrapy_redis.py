"""Lines that a project keeps from scrapy-redis, or from crawls in one process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from scrapy import Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from scrapy_redisq.server.url import redact
from scrapy_redisq.settings.declared import CrawlSettings
from scrapy_redisq.settings.setting import path_of


@dataclass(frozen=True)
class KeptLine:
    """``what`` is set, ``why`` that matters, and the line to ``write`` instead."""

    what: str
    why: str
    write: str


HOOKS = ("next_requests", "fetch_data", "schedule_next_requests")
"""Methods of its spiders that spiders override, and that nobody calls here."""

_SCRAPY_REDIS = re.compile(r"scrapy_redis(_\w+)?\.")
"""Its modules, and those of packages that build on it: their dupefilters delete what they know."""


def of_scrapy_redis(path: str) -> bool:
    """Whether an import path is one of scrapy-redis, or of a package that builds on it."""
    return _SCRAPY_REDIS.match(path) is not None


def kept_lines(settings: BaseSettings, spider: type[Spider] | None = None) -> Iterator[KeptLine]:
    """All of them. Settings are those of a crawl with this package's scheduler."""
    bases = spider.__mro__ if spider else ()
    for base in bases:
        if of_scrapy_redis(path_of(base)):
            yield KeptLine(
                f"The spider is a {base.__name__} of scrapy-redis",
                "Where Scrapy calls its own methods, what a killed worker has just read from its "
                "redis_key is lost",
                f"from scrapy_redisq import {base.__name__}",
            )
            break
    for hook in HOOKS if hasattr(spider, "redis_key") else ():
        owner = next((base for base in bases if hook in vars(base)), object)
        if owner is not object and not owner.__module__.startswith("scrapy_redis"):
            yield KeptLine(
                f"The spider has a {hook}() of its own",
                "No worker calls it: what it took from Redis would be lost with a worker",
                "make_request_from_data(), for the requests of a line, or start(), for others",
            )
    if settings.getbool("SCHEDULER_FLUSH_ON_START") and settings[CrawlSettings.resume.name] is None:
        yield KeptLine(
            "SCHEDULER_FLUSH_ON_START is True",
            "It is not read: an unfinished run is resumed",
            f"{CrawlSettings.resume.name} = False, which forgets pushed requests, too "
            f"(True, if runs are to be resumed)",
        )
    host = settings["REDIS_HOST"]
    given = "REDIS_URL" if settings["REDIS_URL"] else "REDIS_HOST" if host else ""
    if given and settings[CrawlSettings.url.name] is None:
        url = f'"redis://{host}:{settings["REDIS_PORT"] or 6379}/0"'
        yield KeptLine(
            f"{given} is {redact(str(settings[given]))}, and {CrawlSettings.url.name} is not set",
            f"{given} is not read: the frontier is in an embedded server of this machine, and "
            f"workers on other hosts have another one",
            f"{CrawlSettings.url.name} = {'REDIS_URL' if given == 'REDIS_URL' else url} "
            f'("embedded://", if that is meant)',
        )
    if of_scrapy_redis(stats := path_of(settings["STATS_CLASS"])):
        yield KeptLine(
            f"STATS_CLASS is {stats}",
            "A worker waits for Redis at each count, and tells the others none of them",
            'STATS_CLASS = "scrapy.statscollectors.MemoryStatsCollector", as it is by default',
        )
    if why := _trouble_of_dupefilter(settings):
        yield KeptLine(
            f"DUPEFILTER_CLASS is {path_of(settings['DUPEFILTER_CLASS'])}",
            why,
            'DUPEFILTER_CLASS = "scrapy_redisq.BloomDupeFilter", which the add-on sets by itself',
        )


def _trouble_of_dupefilter(settings: BaseSettings) -> str:
    if not settings.getpriority("DUPEFILTER_CLASS"):
        return ""  # Scrapy's own default, in whose place the scheduler takes another one
    chosen = settings["DUPEFILTER_CLASS"]
    try:
        bases = load_object(chosen).__mro__
    except (ImportError, NameError, ValueError, AttributeError):
        bases = ()  # it may not be installed any more
    if any(map(of_scrapy_redis, (path_of(chosen), *map(path_of, bases)))):
        return "It deletes what it has seen when one worker stops: the others fetch pages again"
    if RFPDupeFilter in bases:
        return (
            "It is made from Scrapy's RFPDupeFilter: what one worker has seen another one "
            "fetches again"
        )
    return ""
