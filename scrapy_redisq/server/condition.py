"""How a server is at the moment, as far as this user may ask."""

from __future__ import annotations

import contextlib
from typing import Any

import redis
from msgspec import Struct


class Condition(Struct, frozen=True):
    """A server's memory in bytes, and whether it takes writes. A user who may not
    ask is told nothing: all zeros."""

    used: int = 0
    """Of its memory, without what does not count for ``maxmemory``."""
    most: int = 0
    """``maxmemory``; 0: no limit of its own."""
    refuses: str = ""
    """Why it takes no writes, "" if it does."""

    @property
    def share(self) -> float:
        """How full it is, 0 to 1 and a little more; 0 where there is no limit."""
        return self.used / self.most if self.most else 0.0

    @property
    def is_full(self) -> bool:
        """New requests are refused (OOM)."""
        return self.most > 0 and self.used >= self.most


class Told:
    """A server's answers in one round trip; raises the client's error if the server goes away.
    ``passing_errors``: its answer to PING, if that is an error."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client
        with client.pipeline(transaction=False) as asked:
            asked.ping()
            asked.info()
            asked.role()
            pong, info, role = asked.execute(raise_on_error=False)
        self.trouble: Exception | None = pong if isinstance(pong, Exception) else None
        self.info: dict[str, Any] = info if isinstance(info, dict) else {}
        self.role: list[Any] = role if isinstance(role, list) else [b""]

    def setting(self, name: str, about: str = "") -> str | None:
        """The value of a setting; None: this user may not ask. ``about``: its name in INFO. CONFIG,
        which many users and hosted servers lack, is asked only for what INFO leaves open."""
        if about in self.info:
            return str(self.info[about])
        with contextlib.suppress(redis.ResponseError):  # denied
            answer: dict[str, str] = self.client.config_get(name)
            return answer.get(name)
        return None

    def condition(self) -> Condition:
        info = self.info
        used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
        return Condition(used, int(info.get("maxmemory", 0)), self._refuses())

    def _refuses(self) -> str:
        info = self.info
        if info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok":
            return "its append-only file cannot be written (a full disk?)"
        if (
            info.get("rdb_last_bgsave_status", "ok") != "ok"
            and self.setting("stop-writes-on-bgsave-error") == "yes"
            and self.setting("save")
        ):
            return "its last snapshot failed (a full disk?), and stop-writes-on-bgsave-error is set"
        good = info.get("min_slaves_good_slaves")  # only if some are asked for
        if good is not None and good < (
            wanted := max(1, int(self.setting("min-replicas-to-write") or 0))
        ):
            return f"{good} of {wanted} replicas follow it (min-replicas-to-write)"
        return ""
