"""Some seeds of each day, those that have failed once, and that a seed is a history."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.simulation.fleet import Zygote
from lab.simulation.plan import draw
from lab.simulation.server import TIME
from scrapy_redisq.frontier import scripts
from tests.simulation.mutants import chosen
from tests.simulation.reach import mark, reached

A_DAY = 60
"""Seeds of the day."""

TWICE, SMALL = 20, 10
"""Seeds that are run in two processes, and their most pages."""

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

    every = seeds()
    twice = [seed for seed in every if draw(seed).pages <= SMALL][:TWICE]

    def crawls(of: Zygote, half: Sequence[int]) -> list[dict[str, Any]]:
        # Those of the other half that are crawled twice come between its own.
        mine = [seed for seed in every if seed in half or seed in twice]
        return [of.crawl({"seed": seed, "trace": seed in twice}) for seed in mine]

    with Zygote() as one, Zygote() as other, ThreadPoolExecutor(2) as threads:
        first = threads.submit(crawls, one, every[::2])
        results = [*crawls(other, every[1::2]), *first.result()]
    assert {result["seed"] for result in results} == {*every}
    assert not [
        f"python -m tests.simulation --one --seed {result['seed']}: {problem}"
        for result in results
        for problem in result["problems"]
    ]
    for seed in twice:
        traces = [result["events"] for result in results if result["seed"] == seed]
        assert len(traces[0]) > 20
        assert traces[0] == traces[1]


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


def test_marks(tmp_path: Path) -> None:
    """The statement of each mutant that is crawled with can be marked, in Python and Lua."""
    package, mutants = tmp_path / "scrapy_redisq", [*chosen([])]
    shutil.copytree(Path(scripts.__file__).parents[1], package)
    mark(tmp_path, mutants)
    text = "".join(
        file.read_text() for file in package.rglob("*.*") if file.suffix in (".py", ".lua")
    )
    for number in range(len(mutants)):
        assert len(re.findall(rf"; reached\({number}[,)]|'reached {number}'", text)) == 1
    assert reached("1:M 1 Jan 2027 00:00:00.000 # reached 12\nreached 7\n") == {7, 12}
