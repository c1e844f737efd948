"""Some seeds of each day, those that have failed once, and that a seed is a history."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from lab.simulation.fleet import Zygote, zygote
from lab.simulation.server import TIME
from scrapy_redisq.frontier import scripts

A_DAY = 60
"""Seeds of the day."""

GROUPS = 4
"""Tests that have some of them each: a process that is forked for crawls takes seconds to start."""

TWICE = 20
"""Seeds that are run in two processes."""

FAILED = Path(__file__).with_name("seeds.txt")


def seeds() -> list[int]:
    today = int(time.time()) // 86_400 * 1_000_000
    failed = [int(line.split()[0]) for line in FAILED.read_text().splitlines() if line[:1] != "#"]
    return [*failed, *range(today, today + A_DAY)]


@pytest.mark.long
@pytest.mark.parametrize("nth", range(GROUPS))
def test_crawls(nth: int) -> None:
    """What must hold after any crawl holds after these."""
    with zygote() as one:
        results = [one.crawl({"seed": seed}) for seed in seeds()[nth::GROUPS]]
    assert len(results) >= A_DAY // GROUPS
    assert not [
        f"python -m tests.simulation --one --seed {result['seed']}: {problem}"
        for result in results
        for problem in result["problems"]
    ]


@pytest.mark.long
def test_a_seed_is_a_history() -> None:
    """Run in another process, after other ones, a seed has the same events, byte by byte."""

    def events(of: Zygote, seed: int) -> Any:
        return of.crawl({"seed": seed, "pages": 10, "trace": True})["events"]

    first = seeds()[-1] + 1
    with zygote() as one:
        told = {seed: events(one, seed) for seed in range(first, first + TWICE)}
    assert min(map(len, told.values())) > 20
    with zygote() as other:
        for seed in reversed(told):
            assert events(other, seed) == told[seed], seed


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
