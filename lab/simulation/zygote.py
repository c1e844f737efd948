"""A process that has imported everything, and is forked for each crawl.

``python -m lab.simulation.zygote SOCKET`` reads a JSON object a line (``seed``, and of
`Plan.smaller` ``pages`` and ``without``), runs that crawl on the Redis behind the unix socket, and
writes a JSON object a line: ``problems``, ``met``, ``events``, ``words``, and figures.
"""

from __future__ import annotations

# ruff: noqa: E402
from lab.simulation import clock

clock.take_over()  # before Scrapy and scrapy_redisq are imported

import gc
import importlib
import json
import os
import signal
import sys
import traceback
from dataclasses import replace
from typing import Any

from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from lab.simulation.plan import draw
from lab.simulation.verdict import judge
from lab.simulation.world import World

SCRAPYS = ("scrapy.core.engine", "scrapy.core.downloader", "scrapy.logformatter", "scrapy.pqueues")

REAL_SECONDS = 60
"""That one crawl may take."""


def crawl(task: dict[str, Any], path: str) -> dict[str, Any]:
    """One crawl in this process, which is of no use afterwards."""
    gc.disable()  # when it runs is not the seed's
    plan = draw(task["seed"])
    without = frozenset(str(one) for one in task.get("without") or ())
    plan = plan.smaller(pages=task.get("pages"), without=without)
    if task.get("trace"):
        plan = replace(plan, traced=frozenset({"trace"}))
    world = World(plan, path)
    try:
        world.run()
        problems = judge(world)
    except Exception:
        problems = [f"the simulation itself failed:\n{traceback.format_exc()}"]
    return {
        "seed": plan.seed,
        "problems": problems,
        "words": plan.words(),
        "met": dict(world.met),
        "features": sorted(plan.features),
        "events": world.events,
        "virtual": world.clock.now,
        "hits": sum(world.site.hits.values()),
        "calls": world.server.calls,
    }


def _import_all() -> None:
    """What a crawl would import."""
    settings = Settings()
    for setting in ("DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS"):
        for path in settings.getwithbase(setting):
            load_object(path)
    for name in (*SCRAPYS, "scrapy_redisq.addon", "scrapy_redisq.middlewares.robots"):
        importlib.import_module(name)


def main(path: str) -> None:
    """Serve until standard input ends.

    Nothing is made or kept here between two crawls: sets of objects are ordered by addresses, so
    each child has to begin with the same memory. It reads its own task.
    """
    _import_all()
    gc.collect()
    gc.freeze()
    while os.read(0, 1):
        child = os.fork()
        if child == 0:
            signal.alarm(REAL_SECONDS)
            _answer(crawl(json.loads(os.read(0, 65_536)), path))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            _answer({"problems": [f"hang: no end within {REAL_SECONDS} s of real time"]})


def _answer(told: dict[str, Any]) -> None:
    data = json.dumps(told).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main(sys.argv[1])
