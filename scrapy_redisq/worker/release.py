"""What code and which settings a worker runs, so that people see where the workers of a fleet
differ."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapy_redisq.serialization.values import type_name

OF_ONE_PROCESS = ("LOG_", "TELNETCONSOLE_", "JOBDIR", "FEED", "REDISQ_URL", "REDISQ_RUN",
                  "REDISQ_RELEASE")  # fmt: skip
"""Beginnings of settings that workers of one fleet give each their own value, or that a run has."""

DEPTH = 10


def release_of(given: str, spider: type[Spider]) -> str:
    """``given`` (REDISQ_RELEASE), or a digest of the file that the spider is in; "" without one."""
    if given:
        return given
    try:
        file = sys.modules[spider.__module__].__file__
        return _short(Path(file or "").read_bytes())
    except (KeyError, AttributeError, OSError):
        return ""


def digest_of(settings: BaseSettings) -> str:
    """A digest of what is set by anybody but Scrapy itself. Nothing can be read from it."""
    chosen = {
        name: _canonical(settings[name], DEPTH)
        for name in map(str, settings)
        if (settings.getpriority(name) or 0) > 0 and not name.startswith(OF_ONE_PROCESS)
    }
    return _short(repr(sorted(chosen.items())).encode("utf-8", "surrogatepass"))


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


def _canonical(value: Any, depth: int) -> Any:
    """The same in each process: of objects their class, for they may show where they lie."""
    if depth == 0:
        return "…"
    if isinstance(value, BaseSettings):
        value = dict(value)
    if isinstance(value, dict):
        pairs = ((_canonical(key, depth - 1), _canonical(value[key], depth - 1)) for key in value)
        return sorted(pairs, key=repr)
    if isinstance(value, (set, frozenset)):
        return sorted((_canonical(item, depth - 1) for item in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [_canonical(item, depth - 1) for item in value]
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        return value
    return type_name(value if isinstance(value, type) else type(value))
