"""The settings, read once into a frozen object."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.limits import SlotLimit, Throttle, parse_limit, parse_rate
from scrapy_redisq.settings import checks
from scrapy_redisq.settings import scrapys_limits as fleet_limits
from scrapy_redisq.settings.table import FRONTIER_NAME_TAKES, SETTINGS, SettingsSource

logger = logging.getLogger(__name__)


def check_frontier_name(name: str) -> str:
    """Return ``name`` if a frontier can be called so, else raise `SettingError`."""
    if not isinstance(name, str) or not checks.FRONTIER_NAME.fullmatch(name):
        raise SettingError("REDISQ_FRONTIER", name, FRONTIER_NAME_TAKES)
    return name


@dataclass(frozen=True)
class RedisqSettings:
    """All settings, checked. Durations are seconds, sizes are bytes."""

    enabled: bool
    commands: tuple[Any, ...]
    url: str
    frontier: str
    scheduling: str
    order: str
    dupefilter_error_rate: float
    dupefilter_capacity: int
    resume: bool
    run: str
    keep_seen: bool
    keep_alive: bool
    same_start: bool
    rewind: float
    lease_ttl: float
    max_leases: int
    max_deliveries: int
    max_entry_bytes: int
    max_outbox: int
    dead_max: int
    slot_delay: float
    slot_concurrency: int
    slot_rate: str
    slot_limits: dict[str, dict[str, Any]]
    fleet_limits: bool
    autothrottle: bool
    slot_ttl: float
    backoff_codes: tuple[int, ...]
    backoff_max: float
    slot_give_up: int
    slot_trouble_max: float
    set_aside_wait: float
    crawl_delay_max: float
    robots_errors: str
    retry_delays: tuple[float, ...] | str
    """"exponential" or the pauses."""
    retry_base: float
    retry_cap: float
    retry_after_max: float
    schemes: tuple[str, ...]
    request_classes: tuple[Any, ...]
    value_classes: tuple[Any, ...]
    shards: int
    connect_timeout: float
    socket_timeout: float
    close_timeout: float
    server: str
    database_url: str
    tables: dict[Any, dict[str, Any]]
    metadata: str
    database_batch: int
    parquet_url: str
    parquet_rows: int
    parquet_seconds: float
    items_url: str
    items_key: str
    items_type: str
    items_format: str
    items_max: int
    throttle: Throttle | None = None
    """Terms of AutoThrottle, if it is on; no setting of its own."""

    @classmethod
    def read(cls, source: SettingsSource, spider: object = None) -> RedisqSettings:
        """Read and check all settings; raise `SettingError` for the first that is wrong.

        ``spider`` has attributes that override Scrapy's own limits, or is None.
        A name that begins with ``REDISQ_`` and is no setting is logged with the nearest one that
        is: a misspelt setting would otherwise be ignored in silence.
        """
        known = {setting.name for setting in SETTINGS}
        if isinstance(source, Mapping):
            for name in source:
                if isinstance(name, str) and name.startswith("REDISQ_") and name not in known:
                    nearest = difflib.get_close_matches(name, known, n=1)
                    hint = f"; did you mean {nearest[0]}?" if nearest else ""
                    logger.warning("%s is no setting of scrapy-redisq%s", name, hint)
        values = {setting.attribute: setting.read(source) for setting in SETTINGS}
        fleet_limits.adopt(values, source, spider)
        settings = cls(**values)
        if settings.scheduling == "priority" and settings.shards > 1:
            raise SettingError(
                "REDISQ_SHARDS", settings.shards, "1 with REDISQ_SCHEDULING = 'priority'"
            )
        if settings.scheduling == "priority" and (settings.limits() or settings.throttle):
            raise SettingError(
                "REDISQ_SCHEDULING",
                "priority",
                "'slot' with limits of slots (REDISQ_SLOT_…, REDISQ_FLEET_LIMITS, "
                "REDISQ_AUTOTHROTTLE)",
            )
        return settings

    def limits(self) -> dict[str, str]:
        """Limits of slots by pattern, as the frontier keeps them."""
        common = SlotLimit(self.slot_delay, self.slot_concurrency, parse_rate(self.slot_rate))
        limits = {slot: parse_limit(given, common) for slot, given in self.slot_limits.items()}
        limits.setdefault("*", common)
        return {slot: limit.to_text() for slot, limit in limits.items() if slot != "*" or limit}

    def frontier_config(self, **others: str) -> FrontierConfig:
        """What all workers must agree on: what the settings say, and ``others``, which they do
        not."""
        return FrontierConfig(
            error_rate=self.dupefilter_error_rate,
            capacity=self.dupefilter_capacity,
            scheduling=self.scheduling,
            order=self.order,
            shards=self.shards,
            **others,
        )

    @property
    def heeds_crawl_delay(self) -> bool:
        """The delays that a robots.txt asks for are kept; there must be slots to keep them."""
        return self.crawl_delay_max > 0 and self.scheduling == "slot"

    def run_name(self, spider: str) -> str:
        """The name of the run for the spider called ``spider``, or ""."""
        return self.run % {"spider": spider}

    def frontier_name(self, spider: str) -> str:
        """The frontier's name for the spider called ``spider``; raises `SettingError`."""
        return check_frontier_name(self.frontier % {"spider": spider})
