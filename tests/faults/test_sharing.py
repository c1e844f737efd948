"""Workers that differ, come and go, and pages that lead elsewhere."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from lab.servers import wait_until
from lab.site import Answer
from tests.faults.oracle import assert_survived
from tests.faults.rig import MOST_LEASES, Rig


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


@pytest.mark.full
def test_f78_sessions(rig: Rig) -> None:
    """Workers are killed in the middle of their sessions: each begins anew with a login of its own,
    which all its pages come with, and the spider is told."""
    sessions, pages = int(rig.size.pick(20, 100)), int(rig.size.pick(200, 4_000))
    logins = Counter[int]()

    def page(path: str) -> Answer | None:
        number = int(path[1:])
        place, session = divmod(number, sessions)
        links = [session + sessions * (2 * place + n) for n in (1, 2)]
        answer = Answer(
            "".join(f'<a href="/{link}">x</a>' for link in links if link < pages),
            delay=rig.size.pick(0.2, 0.1),
        )
        if not place:
            logins[session] += 1
            answer.headers["Set-Cookie"] = f"login={session}-{logins[session]}"
        return answer

    rig.set_up(pages=pages, page=page, ttl=2, hold=True)
    options = {"spider": "in_sessions", "sessions": sessions}
    every, seconds = rig.size.pick(1, 2), rig.size.pick(4, 30)
    rig.keep_killing(rig.fleet(**options), every, seconds, **options)
    rig.finish()
    assert_survived(rig, refetch=None, more_created=sessions - pages)
    begun, strangers = Counter[int](), 0
    for hit in sorted(rig.site.hits, key=lambda hit: hit.at):
        place, session = divmod(int(hit.path[1:]), sessions)
        if place:
            strangers += hit.headers.get("cookie") != f"login={session}-{begun[session]}"
        else:
            begun[session] += 1
            # Its first worker may have died with it before.
            assert begun[session] == 1 or "begun" in hit.headers
    lost = sum(worker.log.count("Session lost: ") for worker in rig.workers)
    assert 0 < sum(begun.values()) - sessions <= lost
    assert strangers == 0 or any("leases are void" in worker.log for worker in rig.workers)


@pytest.mark.full
def test_f79_stats_of_all_workers(rig: Rig) -> None:
    """Workers are killed and Redis is restarted: the stats of all workers never go back, and have
    each item that was counted in time. Monitors run once."""
    pytest.importorskip("spidermon")
    extensions = {"crawls.lateness.Starved": 3, "crawls.monitors.OncePerCrawl": 500}
    rig.set_up(
        pages=int(rig.size.pick(300, 4_000)),
        delay=rig.size.pick(0.5, 0.2),
        aof=True,
        ttl=2,
        hold=True,
        EXTENSIONS=json.dumps(extensions),
        SPIDERMON_ENABLED=True,
        SPIDERMON_ADD_FIELD_COVERAGE=True,
        SPIDERMON_SPIDER_CLOSE_MONITORS="crawls.monitors.Suite",
    )
    fleet, told = rig.fleet(), [0]

    def items() -> int:
        return int(rig.status()["stats"].get("item_scraped_count", 0))

    for place, share in enumerate((0.4, 0.6)):
        rig.wait_for_pages(share)
        told.append(items())
        rig.kill(fleet[place])
        rig.worker()
        told.append(items())
    rig.wait_for_pages(0.7)
    told.append(items())
    rig.server.stop()
    rig.server.start()
    told.append(items())
    rig.wait_for_flow(10)
    rig.finish()
    assert_survived(rig, refetch=len(rig.gone) * MOST_LEASES)
    (last,) = [one for one in rig.survivors() if one.stats.get("redisq/last_worker")]
    of_all = last.stats["redisq/fleet/item_scraped_count"]
    others = [one for one in rig.survivors() if one is not last]
    assert told == sorted(told), told
    of_others = sum(worker.stats["item_scraped_count"] for worker in others)
    assert max(told[-1], of_others) <= of_all <= len(rig.site.hits)
    monitored = [
        line for worker in rig.workers for line in worker.log.splitlines() if "monitored: " in line
    ]
    assert [f" {of_all} items, 1.0" in line for line in monitored] == [True]
