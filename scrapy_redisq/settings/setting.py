"""What one setting is: its name, default, check and meaning, and its value in settings as read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, overload

from scrapy_redisq.settings.checks import Check

T = TypeVar("T")

PREFIX = "REDISQ_"

TOKEN_VARIABLE = "REDISQ_DASHBOARD_TOKEN"
"""Of the environment, for the dashboard alone; no setting, also where these come from there."""


REMOVED = {
    "REDISQ_BACKOFF_MAX": "it is 60 s",
    "REDISQ_COMMANDS": "a command joins if it is made from Scrapy's crawl or runspider",
    "REDISQ_DATABASE_BATCH": "it is batch_rows of a class made from DatabasePipeline, 500",
    "REDISQ_ITEMS_FORMAT": "it is JSON, as scrapy-redis writes items",
    "REDISQ_ITEMS_MAX": "no item is dropped; LTRIM or XTRIM do that",
    "REDISQ_PARQUET_ROWS": "it is batch_rows of a class made from ParquetPipeline, 10,000",
    "REDISQ_PARQUET_SECONDS": "it is batch_seconds of a class made from ParquetPipeline, 5 s",
    "REDISQ_RELEASE": "a worker's release is a digest of its spider's file",
    "REDISQ_RETRY_AFTER_MAX": "it is 600 s",
    "REDISQ_RETRY_BASE": "it is 2 s; REDISQ_RETRY_DELAYS takes a list of other pauses",
    "REDISQ_RETRY_CAP": "it is 300 s; REDISQ_RETRY_DELAYS takes a list of other pauses",
    "REDISQ_ROBOTS_ERRORS": "5xx means that nothing is allowed for now, as RFC 9309 says",
    "REDISQ_SERVER": "it is the first redis-server or valkey-server on the PATH",
    "REDISQ_SLOT_TROUBLE_MAX": "it is a day, 86,400 s",
    "REDISQ_SLOT_TTL": "it is an hour",
    "REDISQ_SOCKET_TIMEOUT": "it is 5 s, or what REDISQ_URL says by ?socket_timeout=",
}
"""Settings that there were once, and what holds in their place."""


class SettingsSource(Protocol):
    """What is read from: Scrapy's ``Settings`` or any mapping."""

    def get(self, name: str, default: Any = None, /) -> Any: ...


class Setting(Generic[T]):
    """One setting, declared as an attribute of a class: ``lease_ttl`` is REDISQ_LEASE_TTL.

    Of the class the attribute is the setting itself, of an instance its value, which is in
    ``values`` of the instance. ``meaning`` is its row in docs/settings.md.
    """

    name: str
    attribute: str

    def __init__(self, default: T, check: Check[T], meaning: str) -> None:
        self.default = default
        self.check = check
        self.meaning = meaning

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute = attribute
        self.name = PREFIX + attribute.upper()

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> Setting[T] | T:
        if instance is None:
            return self
        # Kept in the instance, where Python finds it without a call from then on.
        value: T = vars(instance).setdefault(self.attribute, instance.values[self.attribute])
        return value

    def read(self, source: SettingsSource) -> T:
        """The checked value, or the default. Raises `SettingError`."""
        value = source.get(self.name)
        return self.default if value is None else self.check.read(self.name, value)


def path_of(value: Any) -> str:
    """The import path of a class that a setting names, as that or as the class itself."""
    return value if isinstance(value, str) else f"{value.__module__}.{value.__qualname__}"


def settings_of(declaring: type) -> Iterator[Setting[Any]]:
    """All settings that a class and its bases declare, in their order."""
    for base in declaring.__mro__:
        yield from (one for one in vars(base).values() if isinstance(one, Setting))
