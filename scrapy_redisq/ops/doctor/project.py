"""A project's settings: those that are of no use here, and those that fight each other."""

from __future__ import annotations

from collections.abc import Iterator

from scrapy import Spider
from scrapy.settings import BaseSettings
from scrapy.utils.conf import build_component_list

from scrapy_redisq.feed_exports import shared_feeds
from scrapy_redisq.ops.doctor.report import Line, note, ok, problem, warning
from scrapy_redisq.server.connection import SOCKET_TIMEOUT
from scrapy_redisq.settings.scrapy_redis import kept_lines
from scrapy_redisq.settings.scrapys_limits import downloads_at_once
from scrapy_redisq.settings.setting import path_of
from scrapy_redisq.settings.settings import RedisqSettings, unknown_names

OURS = "scrapy_redisq."

REPLACED = {
    "RetryMiddleware": "A retry waits in this process, and is lost with it.",
    "RobotsTxtMiddleware": "Each worker fetches each robots.txt, Crawl-delay is not heeded.",
}
"""Middlewares of Scrapy in whose place the add-on puts others, and what theirs do."""


def examine(
    scrapys: BaseSettings, settings: RedisqSettings, spider: type[Spider]
) -> Iterator[Line]:
    """All that is to be said of the settings that a worker of ``spider`` would have."""
    lines = [
        *_parts(scrapys, settings, spider),
        *_politeness(scrapys, settings),
        *_items(scrapys, spider),
        *_leases(scrapys, settings),
    ]
    if scrapys["JOBDIR"]:
        why = "Requests are kept in Redis; what extensions keep there two workers overwrite."
        lines.append(warning("JOBDIR is set", why, "no JOBDIR"))
    for name, nearest in unknown_names(scrapys):
        text = f"{name} is no setting of scrapy-redisq"
        cure = f"{nearest}, if that was meant" if nearest else "nothing of this name"
        lines.append(warning(text, "It does nothing.", cure))
    yield from lines or [ok("nothing in them fights each other")]


def _parts(scrapys: BaseSettings, settings: RedisqSettings, spider: type[Spider]) -> Iterator[Line]:
    scheduler = path_of(scrapys["SCHEDULER"])
    why = "Crawls join no frontier: each worker fetches everything."
    if not settings.enabled:
        yield note("REDISQ_ENABLED is False", why, "REDISQ_ENABLED True, if it has been tried")
        return
    if not scheduler.startswith(OURS):
        cure = 'ADDONS = {"scrapy_redisq.Addon": 500}'
        if any(path_of(one).startswith(OURS) for one in scrapys.getdict("ADDONS")):
            cure = "no SCHEDULER in the settings: the add-on sets it"
        yield problem(f"SCHEDULER is {scheduler}", why, cure)
        return
    for kept in kept_lines(scrapys, spider):
        yield warning(kept.what, f"{kept.why}.", kept.write)
    chain = build_component_list(scrapys.getwithbase("DOWNLOADER_MIDDLEWARES"))
    paths = [path_of(one) for one in chain]
    for path in paths:
        name = path.rpartition(".")[2]
        is_idle = name == "RobotsTxtMiddleware" and not scrapys.getbool("ROBOTSTXT_OBEY")
        if path.startswith("scrapy.") and name in REPLACED and not is_idle:
            cure = f"the add-on, or scrapy_redisq.Redisq{name} in its place"
            yield warning(f"{name} is Scrapy's", REPLACED[name], cure)
    if not any("BackOff" in path and path.startswith(OURS) for path in paths):
        yield warning(
            "RedisqBackOffMiddleware is missing",
            "A host that answers 429 or 503 is asked on by all workers.",
            "the add-on, or scrapy_redisq.RedisqBackOffMiddleware at 950",
        )


def _politeness(scrapys: BaseSettings, settings: RedisqSettings) -> Iterator[Line]:
    of_fleet = settings.fleet_limits or settings.autothrottle
    delay = scrapys.getfloat("DOWNLOAD_DELAY")
    if delay > 0 and not of_fleet and not settings.slot_delay:
        yield warning(
            f"DOWNLOAD_DELAY is {delay:g} and REDISQ_FLEET_LIMITS False",
            "Each worker keeps the delay for itself: ten of them start ten times as many.",
            "REDISQ_FLEET_LIMITS True (or REDISQ_SLOT_DELAY)",
        )
    name = "CONCURRENT_REQUESTS_PER_DOMAIN"
    is_set = (scrapys.getpriority(name) or 0) > 0
    if is_set and not of_fleet and not settings.slot_concurrency:
        yield note(
            f"{name} is {scrapys.getint(name)}, for each worker",
            "All workers together download as many times more of a host at a time.",
            "REDISQ_FLEET_LIMITS True (or REDISQ_SLOT_CONCURRENCY)",
        )
    if scrapys.getbool("AUTOTHROTTLE_ENABLED") and not settings.autothrottle:
        yield warning(
            "AUTOTHROTTLE_ENABLED is True, REDISQ_AUTOTHROTTLE False",
            "Each worker throttles for itself, and knows nothing of the others' downloads.",
            "REDISQ_AUTOTHROTTLE True, AUTOTHROTTLE_ENABLED False",
        )
    if scrapys.getbool("COOKIES_ENABLED") and (scrapys.getpriority("COOKIES_ENABLED") or 0) > 0:
        yield note(
            "COOKIES_ENABLED is True",
            "Each worker has cookies of its own: a session that one has begun others do not know.",
            "cookies in requests or headers where a session matters",
        )
    if not scrapys.getbool("ROBOTSTXT_OBEY"):
        yield note(
            "ROBOTSTXT_OBEY is False",
            "What sites ask crawlers to leave alone is fetched, Crawl-delay is not heeded.",
            "ROBOTSTXT_OBEY True, unless the site has agreed",
        )


def _items(scrapys: BaseSettings, spider: type[Spider]) -> Iterator[Line]:
    for uri in shared_feeds(scrapys, spider):
        yield warning(
            f"the feed {uri} is one for all workers",
            "They break it for each other: the last one replaces it, or blocks meet in an item.",
            "%(worker)s in its name, or a pipeline of scrapy_redisq.pipelines",
        )
    feeds = scrapys.getdict("FEEDS") or scrapys["FEED_URI"]
    sinks = map(path_of, scrapys.getwithbase("ITEM_PIPELINES"))
    if feeds and not any(path.startswith(OURS) for path in sinks):
        yield note(
            "items go to feeds, and to no sink of scrapy_redisq.pipelines",
            "A page counts as done before its items are in the file: a worker that is killed "
            "loses what it has gathered.",
            "a pipeline of scrapy_redisq.pipelines, which a page waits for",
        )


def _leases(scrapys: BaseSettings, settings: RedisqSettings) -> Iterator[Line]:
    given, most = scrapys.getint("CONCURRENT_REQUESTS"), settings.max_leases
    if most and most < given:
        yield warning(
            f"REDISQ_MAX_LEASES is {most:,}, CONCURRENT_REQUESTS {given}",
            "A worker cannot hold as many requests as it might download at a time.",
            f"REDISQ_MAX_LEASES 0, which is {2 * downloads_at_once(scrapys)}",
        )
    if settings.lease_ttl < 2 * SOCKET_TIMEOUT:
        yield warning(
            f"REDISQ_LEASE_TTL is {settings.lease_ttl:g}, an answer may take {SOCKET_TIMEOUT:g} s",
            "A worker that waits once for an answer that is lost is nearly taken for dead, and so "
            "is one whose callback blocks for so long.",
            f"REDISQ_LEASE_TTL above {2 * SOCKET_TIMEOUT:g}, or 30 unless callbacks are short",
        )
