"""Workers that differ, come and go, and pages that lead elsewhere."""

from __future__ import annotations

import itertools

import pytest

from lab.servers import wait_until
from lab.site import Answer
from tests.faults.oracle import assert_survived
from tests.faults.rig import Rig


@pytest.mark.full
def test_f32_one_closes_early(rig: Rig) -> None:
    """One worker stops at CLOSESPIDER_PAGECOUNT: the others and the keys are not affected."""
    rig.set_up(delay=0.02)
    early, *_ = rig.fleet(first={"settings": {"CLOSESPIDER_PAGECOUNT": 50}})
    early.wait()
    assert (early.process.returncode, early.reason) == (0, "closespider_pagecount")
    assert all(worker.running for worker in rig.workers[1:])
    assert rig.status()["created"] >= 50
    rig.gone.append(early)
    rig.finish()
    assert_survived(rig, refetch=0)


@pytest.mark.full
def test_f76_a_crawl_that_shares_limits_dies(rig: Rig) -> None:
    """A crawl is killed for good in a host's only download: one that shares the host goes on."""
    both = {"REDISQ_LIMITS_NAME": "both", "REDISQ_SLOT_CONCURRENCY": 1}
    rig.set_up(pages=int(rig.size.pick(40, 500)), **both)
    quick, hangs = rig.site.page, Answer("", until=rig.released)
    rig.site.page = lambda path: hangs
    sink = rig.make_sink(rig.folder / "other.sqlite")
    other = rig.worker(settings={"REDISQ_FRONTIER": "other", "SINK": sink})
    wait_until(lambda: rig.site.hits, 30, "a download that hangs")
    rig.site.page = quick
    survivor = rig.worker()
    survivor.wait_for("; dupefilter: ")
    rig.kill(other)
    rig.finish()
    assert survivor.reason == "finished"
    assert len(rig.rows()) == rig.pages
    ends = [(hit.ended, -1) for hit in rig.site.hits]
    steps = sorted([*ends, *((hit.at, 1) for hit in rig.site.hits)])
    assert max(itertools.accumulate(step for _, step in steps)) == 1
