"""A primary with two replicas and three Sentinels: planned failovers, a dead primary, splits."""

from __future__ import annotations

from typing import Any

import pytest

from lab.sentinels import MAJORITY_SIDE, WORKERS_SIDE, Sentinels
from lab.servers import any_server, wait_until
from tests.faults.oracle import assert_survived
from tests.faults.rig import MOST_LEASES, PASSWORD, Rig
from tests.harness.crawl import Crawl

SECRET = "hunter3-of-the-sentinels"


def set_up(
    rig: Rig, kind: str = "redis-7", *, delay: float, hold: bool = False, **options: Any
) -> Sentinels:
    """Three servers and three Sentinels, and a site (``hold``: see `Rig.set_up`). A server is taken
    for dead after half a second, in full after two."""
    group = Sentinels(
        any_server(kind),
        password=PASSWORD,
        sentinel_password=SECRET,
        down_after=rig.size.pick(0.5, 2),
        **options,
    )
    # Well over the time of a failover, as it is to be in earnest.
    rig.set_up(group=group, delay=delay, ttl=rig.size.pick(8, 12), hold=hold)
    return group


def assert_survived_at(rig: Rig, group: Sentinels, refetch: int | None) -> None:
    rig.server = group.primary()
    if refetch is not None:
        # Sentinels that are kept from the processor take the next primary for dead, too: at each
        # failover more the workers may lose what they hold.
        failovers = max(worker.log.count("The primary is ") for worker in rig.workers)
        refetch += max(0, failovers - 1) * len(rig.workers) * MOST_LEASES
    assert_survived(rig, refetch=refetch)
    for worker in rig.workers:
        assert SECRET not in worker.log
        assert "unexpected" not in worker.log


def finish_at_another(rig: Rig, group: Sentinels, fleet: list[Crawl], hits: int) -> None:
    """Assert S at the new primary. What was held may be fetched again, and what was begun since
    ``hits`` until all of the ``fleet`` were there, of which the end may be lost."""
    moved = "The primary is 127.0.0.1:"
    wait_until(
        lambda: all(moved in worker.log or not worker.running for worker in fleet),
        30,
        "all workers are at the new primary",
    )
    allowed = rig.size.workers * MOST_LEASES + len(rig.site.hits) - hits
    if rig.size.full:  # else it may be over by now
        rig.measured["seconds"] = rig.wait_for_flow_again(15, quiet=1)
    rig.finish()
    assert_survived_at(rig, group, allowed)


@pytest.mark.parametrize(("kind", "min_replicas"), [("redis-6", 0), ("redis-7", 0), ("redis-7", 1)])
def test_f61_planned_failover(rig: Rig, kind: str, min_replicas: int) -> None:
    """SENTINEL FAILOVER with open connections, with and without min-replicas-to-write."""
    group = set_up(rig, kind, delay=rig.size.pick(0.1, 0.02), min_replicas=min_replicas)
    fleet = rig.under_way(0.2)
    hits = len(rig.site.hits)
    group.fail_over()
    group.wait_for_another(rig.server)
    finish_at_another(rig, group, fleet, hits)
    for worker in fleet:
        warnings = rig.warnings(worker, "min-replicas-to-write is 0")
        assert len(warnings) == (0 if min_replicas else 1)
        assert "The primary is 127.0.0.1:" in worker.log


@pytest.mark.parametrize("kind", [pytest.param("redis-7", marks=pytest.mark.smoke), "valkey-9"])
def test_f66_primary_killed(rig: Rig, kind: str) -> None:
    """The primary is killed; a worker that starts while there is none waits for the next one."""
    group = set_up(rig, kind, delay=rig.size.pick(0.1, 0.02), hold=True)
    fleet = rig.under_way(0.3)
    hits = len(rig.site.hits)
    rig.server.kill()
    late = rig.worker()
    group.wait_for_another(rig.server)
    finish_at_another(rig, group, fleet, hits)
    assert "Began" not in late.log


def test_f67_old_primary_comes_back(rig: Rig) -> None:
    """The killed primary comes back with its data, and claims for a while to be the primary."""
    group = set_up(rig, delay=0.02, aof=True)
    fleet = rig.under_way(0.3)
    hits = len(rig.site.hits)
    rig.server.kill()
    group.wait_for_another(rig.server)
    rig.server.start()
    finish_at_another(rig, group, fleet, hits)


def test_f68_sentinels_away(rig: Rig) -> None:
    """All Sentinels are away from the middle on: the crawl goes on, and ends when two are back."""
    group = set_up(rig, delay=0.02, min_replicas=1)
    fleet = rig.under_way(0.3)
    for sentinel in group.sentinels:
        sentinel.kill()
    waits = "Nothing is left to do, but this worker waits"
    wait_until(
        lambda: all(waits in worker.log for worker in fleet), rig.size.pick(40, 200), "all wait"
    )
    assert rig.fetched() == rig.pages
    group.sentinels[0].start()
    rig.stay(rig.size.pick(1, 10), lambda: all(worker.running for worker in fleet))
    group.sentinels[2].start()
    rig.finish()
    assert_survived_at(rig, group, 0)
    for worker in fleet:
        assert len(rig.warnings(worker, "and more than half have to")) <= 1


def test_f65_split(rig: Rig) -> None:
    """A worker is cut off with the old primary: it fetches all that is left and does not end, while
    the others go on with a new one. Then the old one becomes a replica."""
    group = set_up(rig, delay=rig.size.pick(0.02, 0.01), fronts=True)
    assert group.front is not None
    alone, other = rig.fleet(2, first={"url": group.url(by_ways=True)})
    rig.wait_for_pages(0.2)
    for way in group.ways:
        way.cut(WORKERS_SIDE)
    group.front.cut(MAJORITY_SIDE)
    group.wait_for_another(rig.server)
    waits = "Nothing is left to do, but this worker waits"
    wait_until(lambda: waits in alone.log, rig.size.pick(60, 200), "it has done all by itself")
    other.wait(rig.size.pick(60, 200))
    assert other.reason == "finished"
    rig.stay(rig.size.pick(0, 20), lambda: alone.running)
    assert alone.running
    for way in group.ways:
        way.mend(WORKERS_SIDE)
    group.front.mend(MAJORITY_SIDE)
    rig.finish()
    assert_survived_at(rig, group, None)
