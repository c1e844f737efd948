"""What code and which settings a worker runs, so that people see where the workers of a fleet
differ."""

from __future__ import annotations

import sys
from pathlib import Path

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapy_redisq.settings.arguments import canonical, short_digest

OF_ONE_PROCESS = ("LOG_", "TELNETCONSOLE_", "JOBDIR", "FEED", "REDISQ_URL", "REDISQ_RUN")
"""Beginnings of settings that workers of one fleet give each their own value, or that a run has."""


def release_of(spider: type[Spider]) -> str:
    """A digest of the file that the spider is in; "" without one."""
    try:
        file = sys.modules[spider.__module__].__file__
        return short_digest(Path(file or "").read_bytes())
    except (KeyError, AttributeError, OSError):
        return ""


def digest_of(settings: BaseSettings) -> str:
    """A digest of what is set by anybody but Scrapy itself. Nothing can be read from it."""
    chosen = {
        name: canonical(settings[name])
        for name in map(str, settings)
        if (settings.getpriority(name) or 0) > 0 and not name.startswith(OF_ONE_PROCESS)
    }
    return short_digest(repr(sorted(chosen.items())))
