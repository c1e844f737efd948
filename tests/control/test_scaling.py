"""How many workers would have work: a table, and a real frontier."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scrapy_redisq.control import Frontier
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.control.scaling import Terms, wanted_workers
from scrapy_redisq.frontier.admin import Waits
from scrapy_redisq.frontier.calls import RunTerms
from tests.control.member import waits
from tests.harness.worker import NAME, Make, ask

S = 1_000_000


def alive(pages_per_minute: float | None = None) -> dict[str, Any]:
    return {"id": "w", "alive": True, "pages_per_minute": pages_per_minute}


def run(queued: int = 0, *, leased: int = 0, delayed: int = 0, **fields: Any) -> dict[str, Any]:
    counts = {"queued": queued, "leased": leased, "delayed": delayed}
    created = queued + leased + delayed
    return {**absent(NAME), "state": "running", **counts, "created": created, **fields}


FREE = waits(kinds={"due": (100, [])}, room=(10_000, 0))
FIVE_SLOW = waits(kinds={"delay": (5, {"limit": 5})}, next=S, starts=300, room=(5, 0))
PARKED = waits(kinds={"parked": (3, {"503": 3})}, next=900 * S)
PAUSED = waits(kinds={"paused": (3, [])}, paused=(3, 3, 3))

CASES: dict[str, tuple[dict[str, Any], Waits, dict[str, Any], int]] = {
    "absent": (absent(NAME), waits(), {"least": 3}, 0),
    "complete": (run(state="complete"), waits(), {"least": 3}, 0),
    "not begun": (absent(NAME), waits(), {"run": "monday"}, 1),
    "not begun, of several": (run(state="complete"), waits(), {"run": "a", "least": 3}, 3),
    "another run goes on": (
        *(run(900, run_name="a", workers=[alive()]), FREE, {"run": "b", "least": 3}, 0),
    ),
    "another run was left": (run(900, run_name="a", state="stopped"), FREE, {"run": "b"}, 1),
    "this run goes on": (run(900, run_name="a", workers=[alive()]), FREE, {"run": "a"}, 57),
    "a run without a name takes this one": (run(900, workers=[alive()]), FREE, {"run": "b"}, 57),
    "begun and done": (run(state="complete", run_name="a"), waits(), {"run": "a"}, 0),
    "ending, or fed by spider_idle": (run(workers=[alive()]), waits(), {}, 1),
    "idle, fed by push": (run(state="stopped"), waits(keep_alive=True), {}, 0),
    "idle, with lines in a feed": (
        *(run(state="complete", run_name="a", feeds={"l": 40, "x": None}), waits()),
        *({"run": "a"}, 3),
    ),
    "lines in a feed, and room": (run(0, leased=16, feeds={"l": 1_000}), waits(), {}, 64),
    "lines in a feed, perhaps of slow hosts": (
        *(run(10_000, feeds={"l": 100_000}), FIVE_SLOW, {}, 1),
    ),
    "start() goes on": (run(workers=[alive()]), waits(starting=1), {}, 1),
    "its first worker died in start()": (run(state="stopped"), waits(), {}, 1),
    "links to other servers": (run(posted=1), waits(), {}, 1),
    "free hosts": (run(10_000), FREE, {}, 625),
    "free hosts, fast workers": (run(10_000, workers=[alive(2_000)]), FREE, {}, 10),
    "five slow hosts": (run(10_000), FIVE_SLOW, {}, 1),
    "400 slow hosts": (run(10_000), waits(kinds={"delay": (400, {})}, room=(400, 0)), {}, 25),
    "400 slow hosts, by their starts": (
        run(100_000),
        waits(kinds={"delay": (400, {})}, room=(400, 0), starts=24_000),
        {"pages_per_minute": 3_000},
        8,
    ),
    "some of many hosts stand for all": (
        run(1_000_000),
        waits(slots=100_000, looked=200, kinds={"due": (200, [])}, room=(200, 0)),
        {"most": 10_000},
        6_250,
    ),
    "the rest is in progress": (run(0, leased=40), waits(), {}, 3),
    "leases of hosts that have more": (run(100, leased=5), waits(room=(5, 5)), {}, 1),
    "due soon": (run(delayed=100), waits(delayed=(100, 0, 20 * S)), {}, 4),
    "due in an hour": (run(delayed=9), waits(delayed=(9, 3600 * S, 3600 * S)), {}, 1),
    "due in an hour, may rest": (
        run(delayed=9),
        waits(delayed=(9, 3600 * S, 3600 * S)),
        {"rest_after": 600, "least": 2},
        0,
    ),
    "parked": (run(30), PARKED, {}, 1),
    "parked, may rest": (run(30), PARKED, {"rest_after": 600}, 0),
    "paused, may rest": (run(30), PAUSED, {"rest_after": 1e9}, 0),
    "parked, somebody has some": (run(30, leased=1), PARKED, {"rest_after": 600}, 1),
    "free, may rest": (run(10_000), FREE, {"rest_after": 0, "most": 4}, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case(case: str) -> None:
    """To 0 it scales only where nothing is left to do, or where it may rest."""
    status, look, options, workers = CASES[case]
    wanted = wanted_workers(status, [look], Terms(**options))
    assert (wanted.workers, bool(wanted.because)) == (workers, True), wanted.because


def test_several_shards() -> None:
    """What they have is added up, each at its own scale."""
    looks = [
        waits(shard=0, slots=100, looked=50, kinds={"due": (50, [])}, room=(160, 0)),
        waits(shard=1, slots=16, looked=16, kinds={"due": (16, [])}, room=(16, 0)),
    ]
    assert wanted_workers(run(10_000), looks).workers == (320 + 16) // 16
    assert wanted_workers(run(10_000), []).workers == math.ceil(10_000 / 16)


@pytest.mark.servers("ends")
def test_a_real_frontier(frontier: Frontier, member: Make) -> None:
    """Limits of hosts, what is queued and held, pauses, and the end."""
    slots = {"one": {"concurrency": 1}, "slow": {"delay": 600}, "few": {"concurrency": 40}}
    assert frontier.wanted_workers(least=5).workers == 0
    worker = member(slots, terms=RunTerms())
    worker.exchange(starting=True)
    assert frontier.wanted_workers().workers == 1
    for slot in ("one", "slow"):
        worker.send([f"https://{slot}/{n}" for n in range(100)], slot=slot)
    assert frontier.wanted_workers().workers == 1
    worker.send([f"https://few/{n}" for n in range(100)], slot="few")
    assert frontier.wanted_workers().workers == 3  # 42 downloads
    assert frontier.wanted_workers(concurrency=8, most=4).workers == 4
    worker.send([f"https://free/{n}" for n in range(250)], slot="free")
    assert frontier.wanted_workers().workers == math.ceil(292 / 16)
    for slot in ("few", "free"):
        frontier.pause(slot)
    assert frontier.wanted_workers().workers == 1
    for slot in ("one", "slow", "few", "free"):
        frontier.drop(slot)
    ask(worker, 0)
    assert frontier.wanted_workers().workers == 1
    worker.leave()
    assert frontier.wanted_workers(least=5).workers == 0
