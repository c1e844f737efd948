"""Workers that differ, come and go, and pages that lead elsewhere."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from lab.servers import wait_until
from lab.site import Answer, linked_pages
from tests.faults.oracle import assert_survived
from tests.faults.rig import Rig, line_with
from tests.harness.crawl import constants


@pytest.mark.full
def test_f30_another_configuration(rig: Rig) -> None:
    """A second crawl on the name with another dupefilter or order is refused within a second."""
    rig.set_up(delay=0.1, pages=int(rig.size.pick(50, 400)), hold=True)
    first = rig.worker()
    first.wait_for(" run ")
    others = {
        "DUPEFILTER_CLASS is 'bloom' there and 'exact' here": {
            "DUPEFILTER_CLASS": "scrapy_redisq.ExactDupeFilter"
        },
        "REDISQ_ORDER is 'fifo' there and 'lifo' here": {"REDISQ_ORDER": "lifo"},
    }
    both = {name: value for settings in others.values() for name, value in settings.items()}
    refusals = [([difference], settings) for difference, settings in others.items()]
    took = []
    for differences, settings in [*refusals, ([*others], both)]:
        second = rig.worker(settings=settings).wait()
        rig.refused.append(second)
        opened, _ = line_with(second.log, "Scrapy")
        refused, line = line_with(second.log, "The crawl cannot start: ")
        assert all(difference in line for difference in differences)
        assert line.count(" there and ") == len(differences)
        # From the first line of its log, so importing everything else included.
        began, _ = line_with(second.log, "Enabled item pipelines")
        assert opened <= began <= refused
        took.append(refused - began)
        assert second.reason != "finished"
        assert first.running
    # The shortest: on a busy machine a process may stand still for longer than that.
    assert min(took) <= 1, took
    rig.finish()
    assert_survived(rig, refetch=0)


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
def test_f38_redirects_and_retries(rig: Rig) -> None:
    """Redirects to new and to seen pages and without end, and a storm of 503."""
    number_of_pages = int(rig.size.pick(120, 5_000))
    pages = linked_pages(number_of_pages)
    failures: Counter[str] = Counter()

    def page(path: str) -> Answer | None:
        name, _, times = path[1:].partition("?")
        if name == "endless":
            return Answer("", 302, {"Location": f"/endless?{int(times or 0) + 1}"})
        if name.startswith("to-"):
            return Answer("", 301, {"Location": f"/{name[3:]}"})
        if name.startswith("new-"):
            return Answer("<html></html>")
        number = int(name)
        if number % 5 == 0 and failures[path] < 2:
            failures[path] += 1
            return Answer("try again", 503)
        answer = pages(path)
        if answer is not None and number % 10 == 1:
            extra = [f"to-{number}", f"to-new-{number}", "endless", "loop"]
            anchors = "".join(f'<a href="/{href}"></a>' for href in extra)
            answer.body = str(answer.body).replace("</html>", anchors)
        return answer

    def page_or_loop(path: str) -> Answer | None:
        return Answer("", 302, {"Location": "/loop"}) if path == "/loop" else page(path)

    rig.set_up(
        pages=number_of_pages,
        page=page_or_loop,
        RETRY_TIMES=3,
        REDIRECT_MAX_TIMES=4,
        # While few pages are known, those that fail may be all there is: ten failures in a row
        # would be a pause of 50 s.
        **constants({"scrapy_redisq.worker.connect.BACK_OFF.longest": 2}),
    )
    rig.fleet()
    rig.finish()
    # A redirect keeps the dupefilter, as in Scrapy: what is seen is not fetched again.
    expected = {f"/{n}": 3 if n % 5 == 0 else 1 for n in range(number_of_pages)}
    for n in range(1, number_of_pages, 10):
        expected |= {f"/to-{n}": 1, f"/to-new-{n}": 1, f"/new-{n}": 1}
    expected |= {"/loop": 1, "/endless": 1, **{f"/endless?{n}": 1 for n in range(1, 5)}}
    assert rig.site.counts() == expected
    assert {page for _, page, _ in rig.rows()} == {
        path[1:] for path in expected if path[1:].isdigit() or path.startswith("/new-")
    }
    more = rig.status()["created"] - number_of_pages
    assert_survived(rig, refetch=None, more_created=more)


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
