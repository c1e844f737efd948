"""A setting: its name, default and check, and its value in settings as read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, overload

from scrapy_redisq.settings.checks import Check

T = TypeVar("T")

PREFIX = "REDISQ_"

TOKEN_VARIABLE = "REDISQ_DASHBOARD_TOKEN"
"""Of the environment, for the dashboard alone; no setting, also where these come from there."""


class SettingsSource(Protocol):
    """A source of settings: Scrapy's ``Settings`` or any mapping."""

    def get(self, name: str, default: Any = None, /) -> Any: ...


class Setting(Generic[T]):
    """One setting, declared as an attribute of a class: ``lease_ttl`` is REDISQ_LEASE_TTL.

    Of the class the attribute is the setting itself, of an instance its value, which is in
    ``values`` of the instance. What it is for says its row in docs/reference/settings.md.
    """

    name: str
    attribute: str

    def __init__(self, default: T, check: Check[T]) -> None:
        self.default = default
        self.check = check

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
