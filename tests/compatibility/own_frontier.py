"""The add-on for Scrapy's own tests, put beside Scrapy in its source (see `scrapys_tests`)."""

import os
import uuid

from scrapy_redisq import Addon


class OwnFrontier(Addon):
    """Gives each crawl a frontier of its own: the tests crawl with one spider again and again,
    and end crawls half-way, which the next one would resume."""

    def update_settings(self, settings):
        super().update_settings(settings)
        settings.set("REDISQ_URL", os.environ["SCRAPYS_TESTS_REDIS"], priority="addon")
        settings.set("REDISQ_FRONTIER", uuid.uuid4().hex, priority="addon")
        settings.set("REDISQ_RETRY_DELAYS", [0.01], priority="addon")
        # A host that is left alone for a minute is what it is for; tests are not that patient.
        settings.set("REDISQ_BACKOFF_CODES", [], priority="addon")
