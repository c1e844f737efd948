"""The add-on that puts the scheduler, the dupefilter and the middlewares in place."""

from __future__ import annotations

from typing import Any

from scrapy.settings import BaseSettings

_SCRAPYS_RETRY = "scrapy.downloadermiddlewares.retry.RetryMiddleware"
_OWN_RETRY = (
    "scrapy_redisq.RedisqRetryMiddleware",
    "scrapy_redisq.retry.RedisqRetryMiddleware",
)
_BACK_OFF = (
    "scrapy_redisq.RedisqBackOffMiddleware",
    "scrapy_redisq.backoff.RedisqBackOffMiddleware",
)

BACK_OFF_PLACE = 950
"""Nearer to the downloader than Scrapy's own middlewares, of which the HTTP cache is at 900."""


class Addon:
    """``ADDONS = {"scrapy_redisq.Addon": 500}``: the same as setting all of them by hand.

    What the project sets itself stays as it is, a retry middleware of its own too.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy; add-ons rank below project settings."""
        settings.set("SCHEDULER", "scrapy_redisq.Scheduler", priority="addon")
        settings.set("DUPEFILTER_CLASS", "scrapy_redisq.BloomDupeFilter", priority="addon")
        _replace_retry(settings)
        _add_back_off(settings)


def _replace_retry(settings: BaseSettings) -> None:
    """Put `RedisqRetryMiddleware` where Scrapy's is by default."""
    place = settings.get("DOWNLOADER_MIDDLEWARES_BASE", {}).get(_SCRAPYS_RETRY)
    chosen: BaseSettings | None = settings["DOWNLOADER_MIDDLEWARES"]
    if place is None or not isinstance(chosen, BaseSettings) or any(map(_retries, chosen)):
        return
    chosen.set(_SCRAPYS_RETRY, None, priority="addon")
    chosen.set(_OWN_RETRY[0], place, priority="addon")


def _add_back_off(settings: BaseSettings) -> None:
    """Put `RedisqBackOffMiddleware` nearest to the downloader."""
    chosen: BaseSettings | None = settings["DOWNLOADER_MIDDLEWARES"]
    if isinstance(chosen, BaseSettings) and not any(map(_backs_off, chosen)):
        chosen.set(_BACK_OFF[0], BACK_OFF_PLACE, priority="addon")


def _backs_off(middleware: Any) -> bool:
    if isinstance(middleware, str):
        return middleware in _BACK_OFF
    bases = getattr(middleware, "__mro__", ())
    return any(f"{base.__module__}.{base.__qualname__}" == _BACK_OFF[1] for base in bases)


def _retries(middleware: Any) -> bool:
    """Whether the project names Scrapy's retry middleware or this package's.

    Paths are not loaded: that is too early for what imports a reactor.
    """
    if isinstance(middleware, str):
        return middleware in {_SCRAPYS_RETRY, *_OWN_RETRY}
    bases = getattr(middleware, "__mro__", ())
    return any(f"{base.__module__}.{base.__qualname__}" == _SCRAPYS_RETRY for base in bases)
