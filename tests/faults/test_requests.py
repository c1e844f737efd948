"""Requests that only their identity tells apart, or that no page stands for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from lab.site import Answer
from tests.faults.oracle import assert_quiet, assert_survived, starved
from tests.faults.rig import MOST_LEASES, Rig


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


@pytest.mark.full
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


@pytest.mark.full
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


BLOOM = "scrapy_redisq.BloomDupeFilter"
