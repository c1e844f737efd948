"""The settings, read once into a frozen object."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy.crawler import Crawler
from scrapy.utils.conf import closest_scrapy_cfg

from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.growth import GrowthLimit
from scrapy_redisq.frontier.limits import SlotLimit, Throttle, parse_limit, parse_rate
from scrapy_redisq.server.connection import Server, open_server
from scrapy_redisq.settings import checks, scrapys_limits
from scrapy_redisq.settings.arguments import Arguments
from scrapy_redisq.settings.declared import CrawlSettings, SinkSettings, SlotSettings
from scrapy_redisq.settings.setting import (
    PREFIX,
    TOKEN_VARIABLE,
    SettingsSource,
    settings_of,
)

logger = logging.getLogger(__name__)


def check_frontier_name(name: str) -> str:
    """Return ``name`` if a frontier can be called so, else raise `SettingError`."""
    return checks.frontier_name.read(CrawlSettings.frontier.name, name)


@dataclass(frozen=True)
class RedisqSettings(CrawlSettings, SlotSettings, SinkSettings):
    """All settings, checked; their attributes are declared in the bases."""

    values: Mapping[str, Any]
    """The final value of each setting, by attribute; what the attributes give."""
    throttle: Throttle | None = None
    """Terms of AutoThrottle, if it is on; no setting of its own."""

    @classmethod
    def read(cls, source: SettingsSource, spider: object = None) -> RedisqSettings:
        """Read and check all settings; raise `SettingError` for the first that is wrong.

        ``spider`` has attributes that override Scrapy's own limits, or is None.
        A name that begins with ``REDISQ_`` and is no setting is logged with the nearest one that
        is: a misspelt setting would otherwise be ignored in silence.
        """
        for name, nearest in unknown_names(source):
            hint = f"; did you mean {nearest}?" if nearest else ""
            logger.warning("%s is no setting of scrapy-redisq%s", name, hint)
        values = {setting.attribute: setting.read(source) for setting in settings_of(cls)}
        throttle = scrapys_limits.adopt(values, source, spider)
        settings = cls(values, throttle)
        if settings.scheduling == "priority" and (settings.shards or 1) > 1:
            raise SettingError(
                cls.shards.name,
                settings.shards,
                f"1 with {cls.scheduling.name} = 'priority'",
            )
        if settings.scheduling == "priority" and (
            settings.limits() or settings.throttle or settings.limits_name
        ):
            raise SettingError(
                cls.scheduling.name,
                "priority",
                f"'slot' with limits of slots ({PREFIX}SLOT_…, {cls.fleet_limits.name}, "
                f"{cls.autothrottle.name}, {cls.limits_name.name})",
            )
        return settings

    def limits(self) -> dict[str, str]:
        """Limits of slots by pattern, as the frontier keeps them."""
        given = self.slot_limits
        common = SlotLimit(
            self.slot_delay,
            self.slot_concurrency,
            parse_rate(self.slot_rate),
            budget=self.slot_budget,
        )
        for_all = parse_limit(given.get("*", {}), common)
        limits = {slot: parse_limit(limit, for_all) for slot, limit in given.items()}
        limits["*"] = for_all
        return {slot: limit.to_text() for slot, limit in limits.items() if slot != "*" or limit}

    def frontier_config(self, **others: Any) -> FrontierConfig:
        """The configuration of all workers, from the settings and ``others``, which are none."""
        return FrontierConfig(
            error_rate=self.dupefilter_error_rate,
            capacity=self.dupefilter_capacity,
            scheduling=self.scheduling,
            order=self.order,
            limits_name=self.limits_name,
            shards=self.shards or 1,
            any_shards=self.shards is None,
            **others,
        )

    def check_shards(self, masters: int) -> None:
        """Raise `SettingError` for several shards on one server (``masters`` is 0), which would
        gain nothing: they are for the masters of a cluster. Also for a REDISQ_LIMITS_NAME on a
        cluster, where a script sees the keys of one hash slot."""
        if masters and self.limits_name:
            raise SettingError(type(self).limits_name.name, self.limits_name, "'' on a cluster")
        if not masters and (self.shards or 1) > 1:
            takes = "1, or nothing, on one server: several shards are for a cluster"
            raise SettingError(type(self).shards.name, self.shards, takes)

    def growth_limit(self) -> GrowthLimit:
        """How large the frontier may become."""
        return GrowthLimit(self.max_pending, self.max_memory)

    @property
    def heeds_crawl_delay(self) -> bool:
        """The delays that a robots.txt asks for are kept; there must be slots to keep them."""
        return self.crawl_delay_max > 0 and self.scheduling != "priority"

    def run_name(self, spider: str) -> str:
        """The name of the run for the spider called ``spider``, or ""."""
        return self.run % {"spider": spider}

    def frontier_name(self, spider: str, arguments: Arguments | Crawler | None = None) -> str:
        """The frontier's name for the spider called ``spider``, with its ``arguments`` or those of
        a crawl. Raises `SettingError`, also if the name has arguments that are not known."""
        filled = {"spider": spider}
        if checks.ARGUMENTS in self.frontier:
            if isinstance(arguments, Crawler):
                arguments = Arguments.of_crawl(arguments)
            if arguments is None:
                takes = f"a name without {checks.ARGUMENTS} where nobody knows the arguments (-a)"
                raise SettingError(type(self).frontier.name, self.frontier, takes)
            filled["arguments"] = arguments.name
        return check_frontier_name(self.frontier % filled)


def unknown_names(source: SettingsSource) -> Iterator[tuple[str, str]]:
    """Names that begin with ``REDISQ_`` and are no setting, each with the nearest one that is."""
    known = {*(setting.name for setting in settings_of(RedisqSettings)), TOKEN_VARIABLE}
    for name in source if isinstance(source, Mapping) else ():
        if isinstance(name, str) and name.startswith(PREFIX) and name not in known:
            yield name, next(iter(difflib.get_close_matches(name, known, n=1)), "")


def project_folder() -> Path | None:
    """The folder of the project's scrapy.cfg; None outside of projects."""
    scrapy_cfg = closest_scrapy_cfg()
    return Path(scrapy_cfg).parent if scrapy_cfg else None


def open_server_of(
    settings: RedisqSettings, project_dir: Path | None = None, *, url: str | None = None
) -> Server:
    """The server at ``url``, or at REDISQ_URL; see `open_server`, also for what it raises.

    It may have to start an embedded server, which takes a moment: not for an event loop.
    """
    return open_server(
        settings.url if url is None else url,
        project_dir=project_dir,
        connect_timeout=settings.connect_timeout,
    )
