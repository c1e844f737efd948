"""The add-on that puts scheduler, dupefilter, middlewares and `feed_uri_params` in place."""

from __future__ import annotations

import logging
from typing import Any

from scrapy.settings import BaseSettings

from scrapy_redisq.participation import why_alone

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
    "scrapy_redisq.middlewares.backoff.RedisqBackOffMiddleware",
)

BACK_OFF_PLACE = 950
"""Nearer to the downloader than Scrapy's own middlewares, of which the HTTP cache is at 900."""


class Addon:
    """``ADDONS = {"scrapy_redisq.Addon": 500}``: the same as setting all of them by hand.

    `RedisqRetryMiddleware` and `RedisqRobotsTxtMiddleware` take the places of Scrapy's,
    `RedisqBackOffMiddleware` comes to the end, feed URIs may say ``%(worker)s``. What the project
    sets itself stays as it is, a retry or robots.txt middleware of its own too. A crawl that joins
    no frontier stays Scrapy's.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy; add-ons rank below project settings."""
        settings.set("FEED_URI_PARAMS", "scrapy_redisq.feed_uri_params", priority="addon")
        if reason := why_alone(settings):
            logger.info("%s", reason)
            return
        settings.set("SCHEDULER", "scrapy_redisq.Scheduler", priority="addon")
        settings.set("DUPEFILTER_CLASS", "scrapy_redisq.BloomDupeFilter", priority="addon")
        for scrapys, own in _REPLACED.items():
            _replace(settings, scrapys, own)
        _add_back_off(settings)


def _replace(settings: BaseSettings, scrapys: str, own: tuple[str, ...]) -> None:
    """Put a middleware of this package where Scrapy's is by default."""
    place = settings.get("DOWNLOADER_MIDDLEWARES_BASE", {}).get(scrapys)
    chosen: BaseSettings | None = settings["DOWNLOADER_MIDDLEWARES"]
    if place is None or not isinstance(chosen, BaseSettings):
        return
    if any(_names(middleware, scrapys, *own) for middleware in chosen):
        return
    chosen.set(scrapys, None, priority="addon")
    chosen.set(own[0], place, priority="addon")


def _add_back_off(settings: BaseSettings) -> None:
    """Put `RedisqBackOffMiddleware` nearest to the downloader."""
    chosen: BaseSettings | None = settings["DOWNLOADER_MIDDLEWARES"]
    if not isinstance(chosen, BaseSettings):
        return
    if not any(_names(middleware, *_BACK_OFF) for middleware in chosen):
        chosen.set(_BACK_OFF[0], BACK_OFF_PLACE, priority="addon")


def _names(middleware: Any, *paths: str) -> bool:
    """Whether the project names one of these middlewares, or a class made from one.

    Paths are not loaded: that is too early for what imports a reactor.
    """
    if isinstance(middleware, str):
        return middleware in paths
    bases = getattr(middleware, "__mro__", ())
    return any(f"{base.__module__}.{base.__qualname__}" in paths for base in bases)
