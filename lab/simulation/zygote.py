"""A process that has imported and tried everything, and is forked for each crawl.

``python -m lab.simulation.zygote SOCKET`` reads a JSON object a line (``seed``, of
`Plan.smaller` ``pages`` and ``without``, and ``lua``, a folder of other scripts), runs that crawl
on the Redis behind the unix socket, and writes a JSON object a line: ``problems``, ``met``,
``events``, ``words``, and figures.
"""

from __future__ import annotations

# ruff: noqa: E402
from lab.simulation import clock

clock.take_over()  # before Scrapy and scrapy_redisq are imported

import gc
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lab.simulation.plan import draw
from lab.simulation.verdict import judge
from lab.simulation.world import World
from scrapy_redisq.frontier import scripts

CPU_SECONDS = 60
"""That one crawl may take."""


def crawl(task: dict[str, Any], path: str) -> dict[str, Any]:
    """One crawl in this process, which is of no use afterwards."""
    plan = draw(task["seed"])
    without = frozenset(str(one) for one in task.get("without") or ())
    plan = plan.smaller(pages=task.get("pages"), without=without)
    if lua := task.get("lua"):
        scripts.load.cache_clear()
        scripts.resources = SimpleNamespace(files=lambda package: Path(lua))  # type: ignore
    world = World(plan, path, is_traced=bool(task.get("trace")))
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
        "late": world.late,
        "hits": sum(world.site.hits.values()),
        "calls": world.network.calls,
    }


REHEARSED = (1000, 1001, 1002)
"""Seeds that the zygote itself crawls before its first child, so that each child finds modules
imported, caches filled and bytecode specialised: a third of a crawl's time went there."""

_rehearsals: list[World] = []
"""Kept: to collect what is left of them would run some of it."""


def _rehearse(path: str) -> None:
    for seed in REHEARSED:
        world = World(draw(seed).smaller(pages=5), path)
        world.run()
        judge(world)
        _rehearsals.append(world)


def main(path: str) -> None:
    """Serve until standard input ends.

    Nothing is made or kept here between two children: sets of objects are ordered by addresses, so
    each child has to begin with the same memory. It reads its own task.
    """
    gc.disable()  # when it runs is not the seed's
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    _rehearse(path)
    signal.setitimer(signal.ITIMER_PROF, 0)
    gc.freeze()
    while os.read(0, 1):
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            _answer(crawl(json.loads(os.read(0, 65_536)), path))
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            _answer({"problems": [f"hang: no end within {CPU_SECONDS} s of a processor"]})


def _answer(told: dict[str, Any]) -> None:
    data = json.dumps(told).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main(sys.argv[1])
