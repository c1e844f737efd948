"""Workers that are killed, stopped, or stand still."""

from __future__ import annotations

import re
import time

import pytest

from lab.servers import wait_until
from lab.site import Answer, linked_pages
from tests.faults.oracle import assert_survived
from tests.faults.rig import MOST_LEASES, Rig, line_with
from tests.harness.crawl import together, wait_until_joined


def test_f01_kill_at_random(rig: Rig) -> None:
    """A random worker is killed again and again, and another one takes its place."""
    rig.set_up(delay=rig.size.pick(0.3, 0.15), hold=True)
    assert rig.kill_at_random(rig.size.pick(4, 60)) >= rig.size.pick(3, 25)
    rig.finish()
    assert_survived(rig, refetch=len(rig.gone) * MOST_LEASES)


@pytest.mark.parametrize("ttls", [0, 2])
def test_f02_kill_all(rig: Rig, ttls: int) -> None:
    """All workers are killed at half, and started again: at once, or when their TTL is over."""
    rig.set_up(ttl=rig.size.pick(2, 6), delay=rig.size.pick(0.05, 0), hold=True)
    rig.under_way(0.5)
    for worker in rig.workers:
        rig.kill(worker)
    rig.stay(ttls * rig.ttl)
    rig.fleet()
    rig.finish()
    status = assert_survived(rig, refetch=rig.size.workers * MOST_LEASES)
    assert 0 < status["reclaimed"] <= rig.size.workers * MOST_LEASES


def test_f03_terminate_one_of_four(rig: Rig) -> None:
    """SIGTERM to one of four: the others get its requests that have not begun within a second."""
    rig.set_up(delay=rig.size.pick(0.3, 0.15), ttl=60)
    fleet = rig.fleet(4)
    rig.wait_for_pages(rig.size.pick(0.3, 0.1))
    victim = next(w for w in rig.status()["workers"] if w["pid"] == fleet[0].process.pid)["id"]

    def leased_by(worker: str) -> set[str]:
        with rig.server.client() as client:
            entries = client.hvals(f"redisq:{{fault:0}}:leases:{worker}")
        return {re.search(rb":\d+/(\d+)", entry)[1].decode() for entry in entries}

    def not_with_others() -> set[str]:
        others = [w["id"] for w in rig.status()["workers"] if w["id"] != victim]
        hits = {hit.path[1:] for hit in rig.site.hits}
        return waiting - hits - set().union(*map(leased_by, others))

    def not_started() -> set[str]:
        return leased_by(victim) - {hit.path[1:] for hit in rig.site.hits}

    waiting = wait_until(not_started, 10, "it holds what it has not started")
    began = time.monotonic()
    fleet[0].terminate()
    # Long before its leases end; to the second it is measured where nothing runs beside.
    most = rig.size.pick(10, 1)
    wait_until(lambda: not not_with_others(), most, f"{waiting} are with others")
    rig.measured["seconds"] = time.monotonic() - began
    rig.gone.append(fleet[0])
    fleet[0].wait()
    assert (fleet[0].process.returncode, fleet[0].reason) == (0, "shutdown")
    rig.finish()
    assert_survived(rig, refetch=0)


def test_f05_poison(rig: Rig) -> None:
    """A page kills its process each time: it alone becomes a dead letter."""
    deliveries = int(rig.size.pick(3, 5))
    pages = int(rig.size.pick(125, 1_000))
    rig.set_up(pages=pages, ttl=3, hold=True, REDISQ_MAX_DELIVERIES=deliveries)
    fleet = [rig.worker(poison="13") for _ in range(rig.size.workers)]

    def buried() -> bool:
        for place, worker in enumerate(fleet):
            if worker.process.poll() == 137:
                rig.gone.append(worker)
                fleet[place] = rig.worker(poison="13")
        return rig.status()["dead"] > 0

    wait_until(buried, rig.size.pick(60, 240), "it is a dead letter")
    rig.finish()
    assert len(rig.gone) == deliveries
    assert_survived(rig, refetch=deliveries * (MOST_LEASES + 1), dead=1, missing=frozenset({"13"}))
    with rig.frontier() as frontier:
        (letter,) = frontier.dead()
    assert (letter.reason, letter.deliveries) == ("deliveries", deliveries)
    assert b"/13" in letter.entry


def test_f33_last_page(rig: Rig) -> None:
    """The queue is empty and the last page is held by a worker that is then killed."""
    rig.pages = int(rig.size.pick(125, 10_000))
    last = f"/{rig.pages - 1}"
    slow = True

    def page(path: str) -> Answer | None:
        answer = pages(path)
        if answer is not None and path == last and slow:
            answer.delay = 600.0
        return answer

    pages = linked_pages(rig.pages)
    rig.set_up(page=page, DOWNLOAD_TIMEOUT=600)
    rig.fleet()
    wait_until(lambda: rig.status()["finished"] == rig.pages - 1, rig.size.pick(40, 200), "one")
    slow = False
    (holder,) = [worker for worker in rig.status()["workers"] if worker["leased"]]
    (killed,) = [worker for worker in rig.workers if worker.process.pid == holder["pid"]]
    others = [worker for worker in rig.workers if worker is not killed]
    rig.stay(1, lambda: all(worker.running for worker in others))
    rig.kill(killed)
    # Nobody has left before the page has been fetched again.
    wait_until(lambda: rig.site.counts()[last] == 2, 3 * rig.ttl + 10, "the last page again")
    rig.finish()
    assert_survived(rig, refetch=1)


def test_f04_stand_still(rig: Rig) -> None:
    """SIGSTOP for three TTLs, then SIGCONT: its late finishes are stale."""
    rig.set_up(delay=0.05)
    fleet = rig.under_way(0.1)
    fleet[0].stop()
    rig.stay(3 * rig.ttl)
    fleet[0].go_on()
    fleet[0].wait_for("leases are void")
    rig.finish()
    status = assert_survived(rig, refetch=MOST_LEASES)
    assert 0 < status["stale"] <= MOST_LEASES


@pytest.mark.parametrize("point", ["claim", "response", "yield", "item", "commit", "sent", "read"])
def test_f06_crash_at_each_step(rig: Rig, point: str) -> None:
    """Workers crash at a step of a page's life, many times over."""
    runs = int(rig.size.pick(3, 25))
    rig.set_up(pages=600, ttl=2, hold=True)
    step = {"yield": 600, "sent": 20, "read": 20, "claim": 15}.get(point, 100)
    rig.crash_again_and_again(
        lambda: f"{point}:{rig.random.randint(1, step)}",
        number=3,
        runs=runs,
        until=lambda: rig.fetched() == rig.pages,
    )
    assert len(rig.gone) >= 3
    rig.finish()
    assert_survived(rig, refetch=len(rig.gone) * MOST_LEASES)


def test_f07_blocked_loop(rig: Rig) -> None:
    """A callback that blocks the event loop for three TTLs."""
    rig.set_up(delay=0.02, ttl=rig.size.pick(1, 3), REDISQ_SAME_ARGUMENTS=False)
    blocked = rig.worker(block=3 * rig.ttl)
    wait_until(lambda: "/7" in rig.site.counts(), 30, "the page that blocks")
    rig.fleet(rig.size.workers - 1)
    rig.finish()
    assert "leases are void" in blocked.log
    # Beside it, a busy machine may let others stand still for this short TTL.
    fenced = sum(worker.log.count("leases are void") for worker in rig.workers)
    assert assert_survived(rig, refetch=fenced * MOST_LEASES)["stale"] > 0


def test_f28_clocks_an_hour_off(rig: Rig) -> None:
    """Workers whose clocks are an hour ahead and an hour behind."""
    rig.set_up()
    clocks = ["3600", "-3600", "0", "7200"][: max(2, rig.size.workers)]
    with together(rig.folder) as gate:
        fleet = [
            rig.worker(environment=rig.clock(offset), fresh=True, settings=gate)
            for offset in clocks
        ]
        wait_until_joined(fleet)
    rig.finish()
    began = [line_with(worker.log, "Scrapy")[0] for worker in fleet]
    assert began[0] - began[1] == pytest.approx(7200, abs=60)
    assert_survived(rig, refetch=0)
