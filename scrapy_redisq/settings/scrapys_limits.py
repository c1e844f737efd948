"""Scrapy's own limits, read as those of the whole fleet (REDISQ_FLEET_LIMITS, REDISQ_AUTOTHROTTLE).

The fleet is then as polite to a slot as one process of Scrapy with the same settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.limits import LONGEST, MOST, Throttle
from scrapy_redisq.settings import checks
from scrapy_redisq.settings.table import SettingsSource

_SECONDS = f"seconds from 0 to {LONGEST:,.0f}"

# name: Scrapy's default, what it takes, check
_SCRAPYS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "DOWNLOAD_DELAY": (0.0, _SECONDS, checks.number(0, LONGEST)),
    "CONCURRENT_REQUESTS_PER_DOMAIN": (
        8,
        f"a whole number from 1 to {MOST:,}",
        checks.integer(1, MOST),
    ),
    "DOWNLOAD_SLOTS": ({}, checks.DOWNLOAD_SLOTS_TAKES, checks.download_slots),
    "AUTOTHROTTLE_ENABLED": (False, "True or False", checks.boolean),
    "AUTOTHROTTLE_START_DELAY": (5.0, _SECONDS, checks.number(0, LONGEST)),
    "AUTOTHROTTLE_MAX_DELAY": (60.0, _SECONDS, checks.number(0, LONGEST)),
    "AUTOTHROTTLE_TARGET_CONCURRENCY": (
        1.0,
        f"a number from 0.001 to {MOST:,}",
        checks.number(0.001, MOST),
    ),
}


def adopt(values: dict[str, Any], source: SettingsSource, spider: object = None) -> None:
    """Add what Scrapy's settings say to ``values`` of settings, which win, by attribute.

    ``spider`` has attributes that override Scrapy's settings, or is None. Raises `SettingError`.
    """
    if not (values["fleet_limits"] or values["autothrottle"]):
        return
    if _read(source, "AUTOTHROTTLE_ENABLED"):
        setting = "REDISQ_AUTOTHROTTLE" if values["autothrottle"] else "REDISQ_FLEET_LIMITS"
        raise SettingError(
            "AUTOTHROTTLE_ENABLED",
            True,
            f"False with {setting}, as it holds in each process; REDISQ_AUTOTHROTTLE = True is "
            f"for the whole fleet",
        )
    delay = _read(source, "DOWNLOAD_DELAY", getattr(spider, "download_delay", None))
    if source.get("REDISQ_SLOT_DELAY") is None:
        values["slot_delay"] = delay
    at_a_time = getattr(spider, "max_concurrent_requests", None)
    if source.get("REDISQ_SLOT_CONCURRENCY") is None and (
        at_a_time is not None or _is_set(source, "CONCURRENT_REQUESTS_PER_DOMAIN")
    ):
        # Scrapy's default is meant for one process: it would slow down every large fleet.
        values["slot_concurrency"] = _read(source, "CONCURRENT_REQUESTS_PER_DOMAIN", at_a_time)
    own = values["slot_limits"]
    slots = _read(source, "DOWNLOAD_SLOTS")
    values["slot_limits"] = {
        slot: {**slots.get(slot, {}), **own.get(slot, {})} for slot in {**slots, **own}
    }
    if values["autothrottle"]:
        values["throttle"] = Throttle(
            target=_read(source, "AUTOTHROTTLE_TARGET_CONCURRENCY"),
            start=max(delay, _read(source, "AUTOTHROTTLE_START_DELAY")),
            least=delay,
            most=_read(source, "AUTOTHROTTLE_MAX_DELAY"),
        )


def _read(source: SettingsSource, name: str, instead: Any = None) -> Any:
    """The checked value of one of Scrapy's settings, or of what overrides it."""
    default, takes, check = _SCRAPYS[name]
    value = source.get(name) if instead is None else instead
    if value is None:
        return default
    try:
        return check(value)
    except (ValueError, TypeError, OverflowError) as error:
        said = str(error) if isinstance(error, checks.Explained) else takes
        raise SettingError(name, value, said) from None


def _is_set(source: SettingsSource, name: str) -> bool:
    """Whether the project has set it: Scrapy's own defaults have priority 0."""
    priority = getattr(source, "getpriority", None)
    return source.get(name) is not None and (priority is None or priority(name) > 0)
