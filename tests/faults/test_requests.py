"""Requests that only their identity tells apart, or that no page stands for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from lab.servers import wait_until
from lab.site import Answer
from tests.faults.oracle import assert_quiet, assert_survived, starved
from tests.faults.rig import MOST_LEASES, Rig
from tests.harness.crawl import constants, gaps


def chained(pages: int, chains: int, delay: float, failing: bool) -> Callable[[str], Answer | None]:
    """Each page is linked from the one ``chains`` before it; ``failing``: 503 the first time."""
    asked = Counter[str]()

    def page(path: str) -> Answer | None:
        number = int(path[1:])
        asked[path] += 1
        if failing and asked[path] == 1:
            return Answer("", 503, delay=delay)
        link = f'<a href="/{number + chains}">' if number + chains < pages else ""
        return Answer(f"<html>{link}</html>", delay=delay)

    return page


@pytest.mark.parametrize("failing", [False, True])
def test_f47_chains(rig: Rig, failing: bool) -> None:
    """Workers that follow chains of unfiltered requests, or of retries, are killed again and
    again: no chain doubles."""
    pages, chains = int(rig.size.pick(150, 2_000)), 20
    rig.set_up(
        pages=pages,
        ttl=1,
        hold=True,
        page=chained(pages, chains, rig.size.pick(0.1, 0.05), failing),
        REDISQ_BACKOFF_CODES="",
        REDISQ_RETRY_DELAYS="0",
        DOWNLOAD_DELAY=0,
    )
    options = {"spider": "chains", "chains": chains}
    every, seconds = rig.size.pick(1, 1.5), rig.size.pick(5, 25)
    rig.keep_killing(rig.fleet(**options), every, seconds, **options)
    rig.finish()
    if failing:
        assert_survived_retries(rig)
    else:
        # Each chain goes on with one page at a time.
        assert_survived(rig, refetch=len(rig.gone) * min(chains, MOST_LEASES))


def assert_survived_retries(rig: Rig) -> None:
    """S, where each page is asked for once more, or not, if its first answer was lost."""
    status = rig.status()
    assert status["state"] == "complete"
    assert rig.pages <= status["created"] == status["finished"] <= 2 * rig.pages
    assert sorted(int(page) for _, page, _ in rig.rows()) == list(range(rig.pages))
    again = (len(rig.gone) + starved(rig)) * MOST_LEASES
    assert sum(rig.site.counts().values()) <= 2 * rig.pages + again
    assert status["dead"] == 0
    assert_quiet(rig)


@pytest.mark.parametrize("lost", ["seeds", "join", "idle"])
def test_f48_seeds(rig: Rig, lost: str) -> None:
    """The last second of the log is lost while ``start()`` runs, also with the joining of the
    workers in it, or while a handler of ``spider_idle`` feeds the crawl."""
    pages = int(rig.size.pick(125, 300))
    rig.set_up(pages=pages, page=lambda path: Answer("<html></html>", delay=0.02), aof=True)
    arguments = {"idle": pages} if lost == "idle" else {"seeds": pages}
    log = rig.server.log_file
    size = log.stat().st_size
    # Each worker has a handler of its own, so that of idle ones only one worker is.
    number = 1 if lost == "idle" else rig.size.workers
    if lost == "join":
        # What there is before they join: a frontier without workers.
        with rig.frontier() as frontier:
            frontier.push([f"{rig.site.url}/0"])
        rig.stay(1.1, lambda: log.stat().st_size > size)
        size = log.stat().st_size
        rig.fleet(number, spider="seeds", settings={"DUPEFILTER_CLASS": BLOOM}, **arguments)
        rig.wait_for_pages(0.3)
    else:
        rig.fleet(number, spider="seeds", **arguments)
        rig.wait_for_pages(0.2)
        size, began = log.stat().st_size, time.monotonic()
        rig.wait_for_pages(0.5)
        rig.measured["seconds"] = time.monotonic() - began
    rig.server.kill()
    with log.open("r+b") as file:
        file.truncate(size)
    rig.server.start()
    rig.finish()
    # What was pushed is filtered, the start request of that URL is not.
    assert_survived(rig, refetch=pages, more_created=int(lost == "join"))


def too_soon(rig: Rig, interval: float) -> int:
    """How many fetches came sooner than so many seconds after another one of the same page."""
    fetched: dict[str, list[float]] = {}
    for hit in rig.site.hits:
        fetched.setdefault(hit.path, []).append(hit.at)
    return sum(gap < interval for at in fetched.values() for gap in gaps(sorted(at)))


def assert_explained(rig: Rig, again: int, lost: int) -> None:
    """So many pages were fetched ``again`` because of what dead workers held, and what was lost."""
    voided = len(rig.gone) + rig.size.workers + starved(rig)
    allowed = voided * MOST_LEASES + lost
    rig.measured.update(refetch=again / rig.pages, allowed=allowed / rig.pages)
    assert again <= allowed


def test_f80_seen_for_a_while(rig: Rig) -> None:
    """With REDISQ_SEEN_TTL of a few seconds workers are killed, and the last second of the log is
    lost: nothing is lost, and no page is fetched twice within that time but for those."""
    ttl, chains = 6.0, int(rig.size.pick(8, 48))

    def page(path: str) -> Answer:
        number = int(path[1:])
        links = [number + chains, number + chains + 1, number + 2 * chains]
        if not number:
            links += range(1, chains)
        return Answer(
            "".join(f'<a href="/{link}">x</a>' for link in links if link < rig.pages), delay=0.5
        )

    rig.set_up(
        pages=int(rig.size.pick(200, 1_500)),
        page=page,
        aof=True,
        ttl=2,
        hold=True,
        REDISQ_SEEN_TTL=f"{ttl:g}s",
        DUPEFILTER_CLASS=rig.random.choice([BLOOM, "scrapy_redisq.ExactDupeFilter"]),
        **constants({"scrapy_redisq.settings.checks.SHORTEST_SEEN_TTL": 1.0}),
    )
    fleet = rig.fleet()
    rig.keep_killing(fleet, 2, rig.size.pick(4, 12))
    lost = rig.kill_the_server(1)
    rig.keep_killing(fleet, 2, rig.size.pick(2, 12))
    rig.finish()
    assert_survived(rig, refetch=None, more_created=rig.status()["created"] - rig.pages)
    # It counts from when a request is taken in, which is a while before it is fetched.
    assert_explained(rig, too_soon(rig, ttl - 2), lost)


def test_f81_pages_that_come_again(rig: Rig) -> None:
    """Workers are killed, the last second of the log is lost, and Redis is restarted: each page
    comes again, as often as it should, and has one next time."""
    every = 2.0
    rig.set_up(
        pages=int(rig.size.pick(60, 200)),
        page=lambda path: Answer("<html></html>", delay=0.1),
        aof=True,
        ttl=2,
        REDISQ_FRONTIER="fault",
    )
    with rig.frontier() as frontier:
        frontier.push([f"{rig.site.url}/{n}" for n in range(rig.pages)], every=every)
    fleet, seconds = rig.fleet(spider="fed"), rig.size.pick(3, 12)
    rig.keep_killing(fleet, 2, seconds, spider="fed")
    lost = rig.kill_the_server(1)
    rig.keep_killing(fleet, 2, seconds, spider="fed")
    rig.server.stop()
    rig.server.start()
    since = time.monotonic()
    all_again = lambda: len({hit.path for hit in rig.site.hits if hit.at > since}) == rig.pages  # noqa: E731
    wait_until(all_again, 60, "all of them come again")
    wait_until(lambda: len(rig.status()["workers"]) == len(fleet), 30, "the dead are gone")
    for worker in fleet:
        worker.terminate()
    for worker in fleet:
        assert worker.wait().reason == "shutdown"
    status = rig.status()
    assert (status["leased"], status["dead"]) == (0, 0), status
    waiting = status["queued"] + status["delayed"]  # of some it is the time already
    assert status["created"] - status["finished"] == waiting == rig.pages, status
    with rig.frontier() as frontier:
        comes = [one["url"] for one in frontier.schedule()]
    assert len(comes) == len(set(comes)) == status["delayed"]
    assert_quiet(rig)
    assert_explained(rig, too_soon(rig, every), lost)


BLOOM = "scrapy_redisq.BloomDupeFilter"
