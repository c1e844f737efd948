"""The add-on that puts scheduler, dupefilter, middlewares and `feed_uri_params` in place."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from scrapy.settings import BaseSettings

from scrapy_redisq.participation import why_alone
from scrapy_redisq.settings.scrapy_redis import of_scrapy_redis
from scrapy_redisq.settings.setting import path_of

logger = logging.getLogger(__name__)

_REPLACED = {
    "scrapy.downloadermiddlewares.retry.RetryMiddleware": (
        "scrapy_redisq.RedisqRetryMiddleware",
        "scrapy_redisq.middlewares.retry.RedisqRetryMiddleware",
    ),
    "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": (
        "scrapy_redisq.RedisqRobotsTxtMiddleware",
        "scrapy_redisq.middlewares.robots.RedisqRobotsTxtMiddleware",
    ),
}
"""Scrapy's middlewares, and the names of those in their place."""

_BACK_OFF = (
    "scrapy_redisq.RedisqBackOffMiddleware",
    "scrapy_redisq.middlewares.retry.RedisqBackOffMiddleware",
)

BACK_OFF_PLACE = 950
"""Nearer to the downloader than Scrapy's own middlewares, of which the HTTP cache is at 900."""


class Addon:
    """``ADDONS = {"scrapy_redisq.Addon": 500}``: the same as setting all of them by hand.

    `RedisqRetryMiddleware` and `RedisqRobotsTxtMiddleware` take the places of Scrapy's,
    `RedisqBackOffMiddleware` comes to the end, feed URIs may say ``%(worker)s``. The project's own
    settings stay as they are, and so do retry or robots.txt middlewares of its own. A crawl that
    joins no frontier stays Scrapy's.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy; add-ons rank below project settings."""
        settings.set("FEED_URI_PARAMS", "scrapy_redisq.feed_uri_params", priority="addon")
        if reason := why_alone(settings):
            logger.info("%s", reason)
            return
        settings.set("SCHEDULER", "scrapy_redisq.Scheduler", priority="addon")
        if of_scrapy_redis(kept := path_of(settings["SCHEDULER"])):
            logger.warning(
                "SCHEDULER is %s: this crawl joins no frontier. Delete SCHEDULER from the "
                "settings: the add-on sets it",
                kept,
            )
        settings.set("DUPEFILTER_CLASS", "scrapy_redisq.BloomDupeFilter", priority="addon")
        chosen: BaseSettings | None = settings["DOWNLOADER_MIDDLEWARES"]
        if not isinstance(chosen, BaseSettings):
            return
        for scrapys, own in _REPLACED.items():
            place = settings.get("DOWNLOADER_MIDDLEWARES_BASE", {}).get(scrapys)
            if place is not None and not _names(chosen, scrapys, *own):
                chosen.set(scrapys, None, priority="addon")
                chosen.set(own[0], place, priority="addon")
        if not _names(chosen, *_BACK_OFF):
            chosen.set(_BACK_OFF[0], BACK_OFF_PLACE, priority="addon")


def _names(chosen: Iterable[Any], *paths: str) -> bool:
    """Whether the project names one of these middlewares, or a class made from one.

    Paths are not loaded: that is too early for what imports a reactor.
    """
    bases = [base for one in chosen for base in getattr(one, "__mro__", ())]
    named = {one for one in chosen if isinstance(one, str)}
    return not named.union(f"{base.__module__}.{base.__qualname__}" for base in bases).isdisjoint(
        paths
    )
