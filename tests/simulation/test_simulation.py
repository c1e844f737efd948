"""Some seeds of each day, those that have failed once, and that a seed is a history."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.simulation.fleet import Zygote, zygote
from lab.simulation.server import TIME
from scrapy_redisq.frontier import scripts

A_DAY = 60
"""Seeds of the day."""

TWICE = 20
"""Seeds that are run in two processes."""

FAILED = Path(__file__).with_name("seeds.txt")


def seeds() -> list[int]:
    today = int(time.time()) // 86_400 * 1_000_000
    failed = [int(line.split()[0]) for line in FAILED.read_text().splitlines() if line[:1] != "#"]
    return [*failed, *range(today, today + A_DAY)]


@pytest.mark.long(90)
@pytest.mark.timeout(1_800)  # beside twenty busy processes, too
def test_crawls() -> None:
    """What must hold after any crawl holds after these. Run in another process, after other ones, a
    seed has the same events, byte by byte."""

    def crawls(of: Zygote, seeds: Sequence[int], traced: Sequence[int]) -> tuple[Any, Any]:
        results = [of.crawl({"seed": seed}) for seed in seeds]
        traces = [of.crawl({"seed": seed, "pages": 5, "trace": True}) for seed in traced]
        return results, {trace["seed"]: trace["events"] for trace in traces}

    every, last = seeds(), seeds()[-1] + 1
    twice = range(last, last + TWICE)
    with zygote() as one, zygote() as other, ThreadPoolExecutor(2) as threads:
        first = threads.submit(crawls, one, every[::2], twice)
        second = threads.submit(crawls, other, every[1::2], twice[::-1])
        (some, traces), (others, again) = first.result(), second.result()
    assert len(some + others) >= A_DAY
    assert not [
        f"python -m tests.simulation --one --seed {result['seed']}: {problem}"
        for result in some + others
        for problem in result["problems"]
    ]
    assert min(map(len, traces.values())) > 20
    assert again == traces


def test_only_the_time_is_another() -> None:
    """Scripts ask for the time in one way, which is all that the simulation replaces."""
    folder = Path(scripts.__file__).parent / "lua"
    found = {
        match
        for file in folder.rglob("*.lua")
        for match in re.findall(r".*\bTIME\b.*call.*|.*call.*\bTIME\b.*", file.read_text())
    }
    assert all(TIME in line for line in found), found
    assert len(found) == 1
