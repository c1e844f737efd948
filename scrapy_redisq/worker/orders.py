"""What people have told this worker: to claim nothing, to go on, to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable

from scrapy_redisq._scrapy.engine import Engine

logger = logging.getLogger(__name__)


class Orders:
    """Heeds them. ``changed`` is called when the worker is to be quiet, or no longer.

    Each exchange brings the last order again. It is the process that is quiet: it still is when it
    has joined again, under an id that nobody has told anything.
    """

    quiet = False
    """The worker claims nothing, and finishes what it holds."""

    paused = False
    """The crawl is paused: the worker begins nothing either."""

    def __init__(self, engine: Engine, changed: Callable[[], None]) -> None:
        self._engine = engine
        self._changed = changed
        self._stopped = False

    def heed(self, told: str) -> None:
        """``told`` by an exchange with shard 0 is "quiet", "work" or "stop", or "paused" as long as
        the crawl is; anything else means nothing."""
        if told != "stop" and self.paused != (told == "paused"):
            self.paused = told == "paused"
            logger.info(
                "The crawl is paused (scrapy redisq pause): nothing is started until it is resumed"
                if self.paused
                else "The crawl goes on (scrapy redisq resume)"
            )
            self._changed()
        if told == "stop" and not self._stopped:
            self._stopped = self._engine.stop()
            if self._stopped:
                logger.info("Told to stop (scrapy redisq workers stop)")
        elif told in {"quiet", "work"} and self.quiet != (told == "quiet"):
            self.quiet = told == "quiet"
            logger.info(
                "Told to be quiet (scrapy redisq workers quiet): this worker finishes what it "
                "holds and claims nothing, until it is told to work or to stop"
                if self.quiet
                else "Told to work (scrapy redisq workers work): this worker claims requests again"
            )
            self._changed()
