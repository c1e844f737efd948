"""Scrapy's own limits: downloads of a worker at a time, and limits that the whole fleet keeps.

With REDISQ_FLEET_LIMITS or REDISQ_AUTOTHROTTLE the fleet is as polite to a slot as one process of
Scrapy with the same settings.
"""

from __future__ import annotations

from typing import Any

from scrapy.settings import BaseSettings, default_settings

from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.limits import LONGEST, MOST, Throttle
from scrapy_redisq.settings import checks
from scrapy_redisq.settings.checks import Check
from scrapy_redisq.settings.declared import SlotSettings
from scrapy_redisq.settings.setting import SettingsSource

NO_LIMIT = 100
"""Downloads of a worker at a time where CONCURRENT_REQUESTS = 0, which sets no limit."""

_CHECKS: dict[str, Check[Any]] = {
    "DOWNLOAD_DELAY": checks.seconds(0, LONGEST),
    "CONCURRENT_REQUESTS_PER_DOMAIN": checks.whole(1, MOST),
    "DOWNLOAD_SLOTS": checks.download_slots,
    "AUTOTHROTTLE_ENABLED": checks.boolean,
    "AUTOTHROTTLE_START_DELAY": checks.seconds(0, LONGEST),
    "AUTOTHROTTLE_MAX_DELAY": checks.seconds(0, LONGEST),
    "AUTOTHROTTLE_TARGET_CONCURRENCY": checks.number(0.001, MOST),
}


def downloads_at_once(settings: BaseSettings) -> int:
    """CONCURRENT_REQUESTS, or `NO_LIMIT`: a worker must not hold leases without a limit."""
    number = settings.getint("CONCURRENT_REQUESTS")
    return number if number > 0 else NO_LIMIT


def adopt(values: dict[str, Any], source: SettingsSource, spider: object = None) -> Throttle | None:
    """Add what Scrapy's settings say to ``values`` of settings, which win, by attribute.

    Returns the terms of AutoThrottle, if it is on. ``spider`` has attributes that override Scrapy's
    settings, or is None. Raises `SettingError`.
    """
    if not (values["fleet_limits"] or values["autothrottle"]):
        return None
    if _read(source, "AUTOTHROTTLE_ENABLED"):
        asked = SlotSettings.autothrottle if values["autothrottle"] else SlotSettings.fleet_limits
        raise SettingError(
            "AUTOTHROTTLE_ENABLED",
            True,
            f"False with {asked.name}, as it holds in each process; "
            f"{SlotSettings.autothrottle.name} = True is for the whole fleet",
        )
    delay = _read(source, "DOWNLOAD_DELAY", getattr(spider, "download_delay", None))
    if source.get(SlotSettings.slot_delay.name) is None:
        values["slot_delay"] = delay
    at_a_time = getattr(spider, "max_concurrent_requests", None)
    if source.get(SlotSettings.slot_concurrency.name) is None and (
        at_a_time is not None or _is_set(source, "CONCURRENT_REQUESTS_PER_DOMAIN")
    ):
        # Scrapy's default is meant for one process: it would slow down every large fleet.
        values["slot_concurrency"] = _read(source, "CONCURRENT_REQUESTS_PER_DOMAIN", at_a_time)
    own = values["slot_limits"]
    slots = _read(source, "DOWNLOAD_SLOTS")
    values["slot_limits"] = {
        slot: {**slots.get(slot, {}), **own.get(slot, {})} for slot in {**slots, **own}
    }
    if not values["autothrottle"]:
        return None
    return Throttle(
        target=_read(source, "AUTOTHROTTLE_TARGET_CONCURRENCY"),
        start=max(delay, _read(source, "AUTOTHROTTLE_START_DELAY")),
        least=delay,
        most=_read(source, "AUTOTHROTTLE_MAX_DELAY"),
    )


def _read(source: SettingsSource, name: str, instead: Any = None) -> Any:
    """The checked value of one of Scrapy's settings, or of what overrides it."""
    value = source.get(name) if instead is None else instead
    if value is None:
        value = getattr(default_settings, name, {})  # older ones have no DOWNLOAD_SLOTS
    return _CHECKS[name].read(name, value)


def _is_set(source: SettingsSource, name: str) -> bool:
    """Whether the project has set it: Scrapy's own defaults have priority 0."""
    priority = getattr(source, "getpriority", None)
    return source.get(name) is not None and (priority is None or priority(name) > 0)
