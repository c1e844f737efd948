"""Runs the crawls of many seeds, a zygote and a Redis for each core."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.servers import Closed, RedisServer, any_server

ROOT = Path(__file__).parent.parent.parent


class Zygote(Closed):
    """One of them, with a Redis of its own, for the project in ``folder``. Addresses are not
    random, nor is the environment: what is ordered by them would be another one each time."""

    def __init__(self, folder: Path = ROOT) -> None:
        self._server = RedisServer(any_server("redis-7"), "--save", "3600", "1000000000")
        fixed = ["setarch", "-R"] if shutil.which("setarch") else []
        module = [sys.executable, "-m", "lab.simulation.zygote"]
        self._process = subprocess.Popen(
            [*fixed, *module, str(self._server.folder / "redis.sock")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", "HOME": tempfile.gettempdir()},
        )

    def crawl(self, task: dict[str, Any]) -> dict[str, Any]:
        """The crawl of ``seed``, with ``pages`` and ``without`` some of its parts."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(" " + json.dumps(task))
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the zygote is gone"
        told: dict[str, Any] = json.loads(line)
        return {**task, **told}

    def log(self) -> str:
        """What its Redis has logged since the last time."""
        file = self._server.folder / "log"
        text = file.read_text()
        os.truncate(file, 0)
        return text

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._server.close()


def crawl_all(
    tasks: Iterable[dict[str, Any]],
    told: Callable[[dict[str, Any], Zygote], bool],
    folder: Path = ROOT,
) -> None:
    """Crawl all ``tasks``; ``told(result, zygote)`` is called for each: whether to go on.

    A crawl and its Redis never run at the same time, so they share a core: that is a sixth faster
    than to let the kernel move them about."""
    left = iter(tasks)
    lock = threading.Lock()
    ended = threading.Event()

    def work(core: int) -> None:
        try:
            if cores is not None:
                os.sched_setaffinity(0, {core})  # of this thread, and of what it starts
            with Zygote(folder) as mine:
                while not ended.is_set():
                    with lock:
                        task = next(left, None)
                    if task is None:
                        return
                    result = mine.crawl(task)
                    with lock:
                        if not told(result, mine):
                            return
        finally:
            ended.set()  # all tasks are taken, or somebody wants no more

    # A container may have some of the machine's; macOS tells none.
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    numbers = cores or range(os.cpu_count() or 1)
    with ThreadPoolExecutor(len(numbers)) as threads:
        working = [threads.submit(work, one) for one in numbers]
        try:
            for each in working:
                each.result()
        finally:
            ended.set()  # on Ctrl-C, too


def shortened(one: Zygote, task: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The smallest task found that still fails: faults and features are left out one by one, then
    pages."""
    kinds = {problem.partition(":")[0] for problem in result["problems"]}

    def fails(smaller: dict[str, Any]) -> bool:
        problems = one.crawl(smaller)["problems"]
        return bool(kinds & {problem.partition(":")[0] for problem in problems})

    without = list(task.get("without") or ())
    faults = [str(n) for n in range(8)]
    for part in [*faults, *result.get("features", [])]:
        if part not in without and fails({**task, "without": [*without, part]}):
            without.append(part)
    smallest = {**task, "without": without}
    for pages in (3, 5, 8, 12, 20, 40):
        if fails({**smallest, "pages": pages}):
            return {**smallest, "pages": pages}
    return smallest
