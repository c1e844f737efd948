"""A worker's origin, for people: since when it runs, by which code and settings."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from scrapy import Spider
from scrapy.settings import BaseSettings

from scrapy_redisq.settings.arguments import canonical, short_digest

MOST_OF_PROCESS = 60.0
"""Seconds that a process may take until its first crawl begins. An older process is an application
that crawls now and then: its age says nothing about the crawl."""

OF_ONE_PROCESS = ("LOG_", "TELNETCONSOLE_", "JOBDIR", "FEED", "REDISQ_URL", "REDISQ_RUN")
"""Beginnings of settings that workers of one fleet give each their own value, or that a run has."""

_imported = time.monotonic()
_processes_that_crawled: set[int] = set()
"""This one, and what it was forked from."""


def process_age() -> float:
    """Seconds since this process was started; where that is not known, since this module was."""
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22, starttime, of proc(5)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError, ValueError, IndexError):  # not Linux
        age = -1.0
    return age if age >= 0 else time.monotonic() - _imported


def crawl_began() -> float:
    """When the crawl that begins now was started, by time.monotonic(): to be called once for each
    crawl, early. The first one of a process was started with it, as ``scrapy crawl`` is."""
    now, pid = time.monotonic(), os.getpid()
    age = 0.0 if pid in _processes_that_crawled else process_age()
    _processes_that_crawled.add(pid)
    return now - age if age <= MOST_OF_PROCESS else now


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
