"""Some seeds of each day, those that have failed once, and that a seed is a history."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def one() -> Iterator[Zygote]:
    with zygote() as made:
        yield made


@pytest.mark.parametrize("nth", range(len(seeds())))
def test_a_crawl(one: Zygote, nth: int) -> None:
    """What must hold after any crawl holds after this one."""
    result = one.crawl({"seed": seeds()[nth]})
    problems = "\n".join(result["problems"])
    assert not problems, f"python -m tests.simulation --one --seed {result['seed']}\n{problems}"


def test_a_seed_is_a_history(one: Zygote) -> None:
    """Run in another process, after other ones, a seed has the same events, byte by byte."""

    def events(of: Zygote, seed: int) -> Any:
        return of.crawl({"seed": seed, "pages": 10, "trace": True})["events"]

    first = seeds()[-1] + 1
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
