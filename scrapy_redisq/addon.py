"""The add-on that puts the scheduler and the dupefilter in place."""

from __future__ import annotations

from scrapy.settings import BaseSettings


class Addon:
    """``ADDONS = {"scrapy_redisq.Addon": 500}``: the same as setting both by hand.

    What the project sets itself stays as it is.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Called by Scrapy; add-ons rank below project settings."""
        settings.set("SCHEDULER", "scrapy_redisq.Scheduler", priority="addon")
        settings.set("DUPEFILTER_CLASS", "scrapy_redisq.BloomDupeFilter", priority="addon")
