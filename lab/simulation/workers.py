"""A worker: its process and crawler, its settings, and what it logs."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrapy.settings import BaseSettings

from lab.simulation.clock import WORKER, Process
from lab.simulation.plan import Plan
from lab.simulation.site import BURST, DELAY, RATE, RETRY_DELAY, RETRY_TIMES

if TYPE_CHECKING:
    from lab.simulation.world import World

AGE = 1.0
"""Virtual seconds that a process takes until its crawl begins."""

SETTINGS: dict[str, Any] = {
    "TWISTED_REACTOR_ENABLED": False,
    "ADDONS": {"scrapy_redisq.Addon": 500},
    "DOWNLOAD_HANDLERS": {"http": "lab.simulation.spider.Downloads", "https": None},
    "COOKIES_ENABLED": False,
    "CONCURRENT_ITEMS": 3,  # so many tasks are made for each response
    "ITEM_PIPELINES": {"lab.simulation.spider.Refuse": 1, "lab.simulation.spider.Sink": 2},
    "REDISQ_CONNECT_TIMEOUT": 120,  # one fault may follow the other
    "REDISQ_RETRY_DELAYS": [RETRY_DELAY],
    "REDISQ_SET_ASIDE_WAIT": 5,
    "RETRY_TIMES": RETRY_TIMES,
    "URLLENGTH_LIMIT": 0,  # of what has nothing to do here, and would take its time
    "METAREFRESH_ENABLED": False,
    "COMPRESSION_ENABLED": False,
    "HTTPPROXY_ENABLED": False,
    "EXTENSIONS_BASE": {"scrapy.extensions.corestats.CoreStats": 0},
    "WARN_ON_GENERATOR_RETURN_VALUE": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "INFO",
}

WIDE = 2
"""Downloads at each host at a time, if there is a limit."""


def settings_of(plan: Plan, url: str) -> dict[str, Any]:
    """Those of a plan's project, with the server at ``url``."""
    settings = {**SETTINGS, "REDISQ_URL": url, **plan.settings}
    if "limits" in plan.features:
        settings["REDISQ_SLOT_DELAY"] = DELAY
    if "keep_alive" in plan.features:
        settings["REDISQ_KEEP_ALIVE"] = True
    if "robots" in plan.features:
        settings["ROBOTSTXT_OBEY"] = True
    if "wide" in plan.features:
        settings["REDISQ_SLOT_CONCURRENCY"] = WIDE
        settings["REDISQ_MAX_LEASES"] = (0, 1, 3)[plan.seed % 3]
    slots = copy.deepcopy(plan.settings.get("REDISQ_SLOT_LIMITS", {}))
    if "rate" in plan.features:
        slots.setdefault("h0.sim", {}).update(rate=f"{RATE * 60:.0f}/m", burst=BURST)
    if "narrow" in plan.features:
        slots["h1.sim"] = {"concurrency": 1}
    settings["REDISQ_SLOT_LIMITS"] = slots
    return settings


@dataclass
class Worker:
    """One `scrapy crawl`. ``reason`` is what its spider was closed with, "" until then.
    ``is_strange``: of another crawl on the same name. ``run``: the one that was there when it was
    started."""

    process: Process
    crawler: Any
    is_strange: bool = False
    run: bytes | None = None
    started_at: float = 0.0
    joined_at: float = math.inf
    closed_at: float = 0.0
    task: asyncio.Task[None] | None = None
    reason: str = ""
    stopped: int = 0
    error: BaseException | None = None

    @property
    def number(self) -> int:
        return self.process.number

    @property
    def is_over(self) -> bool:
        return self.process.dead or (self.task is not None and self.task.done())


def run_of(worker: Worker) -> str | None:
    """The run that it has joined."""
    joined = getattr(worker.crawler.engine.scheduler, "worker", None)
    return joined and joined.run_session.sessions[0].run_id


def copied(settings: BaseSettings) -> BaseSettings:
    """A copy of settings, which takes Scrapy's own a tenth of a crawl's time."""
    clone = copy.copy(settings)
    clone.attributes = {name: copy.copy(one) for name, one in settings.attributes.items()}
    for one in clone.attributes.values():
        if isinstance(one.value, BaseSettings):
            one.value = copied(one.value)
        elif isinstance(one.value, (list, dict)):
            one.value = copy.copy(one.value)
    return clone


class Log(logging.Handler):
    """What workers log, as events: from here on nobody else is told."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world
        root = logging.getLogger()
        root.handlers[:] = [self]
        root.setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        process = WORKER.get()
        who = f"w{process.number}" if process else "world"
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            self._world.met["traceback"] += 1
            last = "".join(traceback.format_exception(*record.exc_info))
            if not _is_expected(record):
                self._world.problems.append(f"{who}: a traceback: {text}\n{last}")
        self._world.say(f"{who} {record.levelname} {record.name}: {text}")


def _is_expected(record: logging.LogRecord) -> bool:
    """Scrapy's own of exceptions that the spider or the pipeline raises on purpose."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    return isinstance(error, (KeyError, ValueError)) and record.name in (
        "scrapy.core.scraper",
        "scrapy.core.engine",
    )
