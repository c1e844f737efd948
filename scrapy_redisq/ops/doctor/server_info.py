"""What a server says of itself."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import redis

CONFIGS = (
    "appendfsync",
    "list-compress-depth",
    "maxclients",
    "min-replicas-to-write",
    "save",
)


class Told:
    """INFO and CONFIG of one server; empty where the user may not ask."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client
        self.info: Mapping[str, Any] = self.ask(client.info) or {}
        self.config: dict[str, str] = {}
        for name in CONFIGS:
            self.config |= self.ask(client.config_get, name) or {}

    @staticmethod
    def ask(question: Any, *arguments: Any) -> Any:
        """None if that is not allowed, or this server does not know it."""
        with contextlib.suppress(redis.ResponseError, ValueError):
            return question(*arguments)
        return None

    @property
    def version(self) -> tuple[int, ...]:
        """As Redis counts: Valkey 8 and 9 are 7.2."""
        text = str(self.info.get("redis_version", "0.0"))
        return tuple(int(part) for part in text.split(".") if part.isdecimal())

    def number(self, name: str) -> float:
        """Of INFO; 0 if it is not there."""
        try:
            return float(self.info.get(name, 0))
        except (TypeError, ValueError):
            return 0.0

    def set_to(self, name: str) -> int | None:
        """A number of the configuration."""
        text = str(self.config.get(name, ""))
        return int(text) if text.isdecimal() else None
