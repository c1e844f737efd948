"""How long ago a worker was started, so that it is known which run it belongs to."""

from __future__ import annotations

import os
import time
from pathlib import Path

MOST_OF_PROCESS = 60.0
"""Seconds that a process may take until its first crawl begins. One that is older is an application
that crawls now and then; how long it has lived says nothing about the crawl."""

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
    """When the crawl that begins now was started, by time.monotonic().

    To be called once for each crawl, early. The first one of a process was started with it, as
    ``scrapy crawl`` is: imports and a slow ``__init__`` count.
    """
    now, pid = time.monotonic(), os.getpid()
    age = 0.0 if pid in _processes_that_crawled else process_age()
    _processes_that_crawled.add(pid)
    return now - age if age <= MOST_OF_PROCESS else now
