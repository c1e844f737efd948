"""`Frontier`, the view from outside: pushing, status, dead letters, requeueing, resetting.

Workers are driven by hand here, through `ShardSession`: no Scrapy, no clock but the server's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from scrapy import Request

from lab.servers import configured
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.operations import Lease
from scrapy_redisq.serialization.request_fields import loads_fields
from scrapy_redisq.settings.settings import RedisqSettings
from tests.control.conftest import Opener
from tests.control.member import Member, some_urls


class Marked(Request):
    """A request class of the project."""


@dataclasses.dataclass
class Job:
    """What spiders of the project put into requests."""

    number: int


def paths_of(leases: list[Lease]) -> list[str]:
    return [loads_fields(lease.entry)["url"].rpartition("/")[2] for lease in leases]


def check_sums(frontier: Frontier) -> dict[str, Any]:
    """Each created request is in exactly one place."""
    status = frontier.status()
    held = status["queued"] + status["delayed"] + status["leased"] + status["finished"]
    assert held == status["created"]
    assert min(status[name] for name in ("queued", "delayed", "leased", "done", "dead")) >= 0
    return status


class TestPush:
    def test_large_ones(self, frontier: Frontier) -> None:
        """As many bytes at a time as a script takes in a moment, in their order."""
        with configured(frontier.client, {"proto-max-bulk-len": 5_000_000}):
            pushed = frontier.push(
                {"url": f"https://a.example/{n}", "method": "POST", "body": "x" * 500_000}
                for n in range(20)
            )
        assert (pushed.accepted, pushed.errors) == (20, [])
        paths = paths_of(Member(frontier).claim(100))
        assert paths == [str(n) for n in range(len(paths))]

    def test_classes_that_the_settings_list(self, open_frontier: Opener) -> None:
        """Objects of the project may be pushed as its spiders may store them; else it is said what
        to do about it. ``dont_filter`` passes the dupefilter."""
        items = [
            Marked("https://a.example/1"),
            Request("https://a.example/2", meta={"job": Job(1)}),
            {"url": "https://a.example/3", "cb_kwargs": {"job": Job(2)}},
            Request("https://a.example/4"),
            Request("https://a.example/4", dont_filter=True),
        ]
        given = {"REDISQ_REQUEST_CLASSES": [Marked], "REDISQ_VALUE_CLASSES": [Job]}
        assert open_frontier(settings=RedisqSettings.read(given)).push(items).accepted == 5
        refused = dict(open_frontier().push(items).errors)
        assert "REDISQ_REQUEST_CLASSES" in refused[1]
        assert f"list {__name__}.Job in REDISQ_VALUE_CLASSES" in refused[2]
        assert f"list {__name__}.Job in REDISQ_VALUE_CLASSES" in refused[3]

    def test_a_fingerprinter_that_raises(self, open_frontier: Opener) -> None:
        """One of the project that wants more than a request has: the others are pushed."""

        def fingerprint(request: Request) -> bytes:
            job = request.meta["job"]
            return job.encode() if job != "text" else job

        frontier = open_frontier(fingerprint=fingerprint)
        wrong: list[Any] = [{}, {"job": 5}, {"job": "text"}, {"redisq_delay": [[]]}]
        metas = [{"job": "a"}, *wrong, {"job": "b"}]
        pushed = frontier.push({"url": "https://a.example/", "meta": meta} for meta in metas)
        assert pushed.accepted == 2
        texts = dict(pushed.errors)
        assert sorted(texts) == [2, 3, 4, 5]
        assert texts[2] == "KeyError: 'job'"
        assert "'text'" in texts[4]

    def test_the_slot_that_scrapys_downloader_takes(self, frontier: Frontier) -> None:
        for n, slot in enumerate(["", 0]):
            frontier.push([{"url": f"https://a.example/{n}", "meta": {"download_slot": slot}}])
        assert {found.slot for found in frontier.slots()} == {"", "0"}

    def test_a_generator_of_many(self, frontier: Frontier) -> None:
        """More than fit in one script are pushed in several, and numbered through from 1; bad ones
        are reported, and do not stop the others."""
        bad: dict[int, Any] = {
            **{3: "ftp://bad/", 4: {"url": "https://a.example/2", "colour": "red"}},
            **{5: {"url": "https://a.example/3", "priority": "high"}, 700: {}},
        }
        pushed = frontier.push(bad.get(i, f"https://a.example/{i % 800}#{i}") for i in range(1000))
        # 0…799 are new but for the bad ones, and 800…999 repeat 0…199 but for three of these.
        assert (pushed.accepted, pushed.duplicates) == (799, 197)
        assert [number for number, _ in pushed.errors] == [4, 5, 6, 701]
        assert "colour" in pushed.errors[1][1]
        assert "'priority'" in pushed.errors[2][1]
        status = check_sums(frontier)
        queues = frontier.client.scan_iter("redisq:{books:*}:queue:*")
        queued = sum(frontier.client.llen(queue) for queue in queues)
        assert queued == status["queued"] == status["seen"] == 799
        assert status["duplicates"] == 197

    def test_the_configuration_of_the_run_before(self, open_frontier: Opener) -> None:
        """Who says nothing of it begins a run as the one before was, so that its workers come;
        who says something decides."""
        config = FrontierConfig(order="lifo", dupefilter="exact", shards=4)
        open_frontier(config=config).push(["https://a.example/"])

        def pushed_after_the_end(**options: Any) -> tuple[Any, ...]:
            frontier = open_frontier()
            worker = Member(frontier)
            assert worker.end_all()
            assert worker.leave()
            assert open_frontier(**options).push(["https://a.example/"]).accepted == 1
            status = check_sums(frontier)
            return status["order"], status["dupefilter"]["kind"], status["shards"]

        assert pushed_after_the_end() == ("lifo", "exact", 4)
        settings = RedisqSettings.read({})
        assert pushed_after_the_end(settings=settings) == ("fifo", "bloom", 1)
        assert pushed_after_the_end(config=config) == ("lifo", "exact", 4)

    @pytest.mark.parametrize("keep_seen", [True, False])
    def test_what_the_runs_before_have_seen(self, open_frontier: Opener, keep_seen: bool) -> None:
        """Who says nothing of it keeps that, and dead letters, if the last workers did."""
        frontier = open_frontier()
        frontier.push(["https://a.example/", "https://b.example/"])
        worker = Member(frontier, terms=calls.RunTerms(keep_seen=keep_seen))
        worker.end_all("dead", "download")
        assert worker.leave()
        pushed = open_frontier().push(["https://a.example/", "https://c.example/"])
        kept = (pushed.duplicates, check_sums(frontier)["dead"])
        assert kept == ((1, 2) if keep_seen else (0, 0))

    def test_another_fingerprinter_is_refused(self, open_frontier: Opener) -> None:
        """A frontier begun with a fingerprinter of its own takes no others' fingerprints."""
        config = FrontierConfig(fingerprinter="shop.Fingerprinter")
        open_frontier(config=config, fingerprint=lambda request: b"all alike").push(some_urls(2))
        with pytest.raises(SettingError, match=r"shop\.Fingerprinter"):
            open_frontier().push(["https://a.example/"])
        assert open_frontier().status()["queued"] == 1
        worker = Member(open_frontier())
        worker.end_all("dead", "download")
        assert worker.leave()
        with pytest.raises(SettingError, match=r"shop\.Fingerprinter"):
            open_frontier().push(["https://a.example/"])
        # No run was begun, which would have deleted them.
        assert open_frontier().status()["dead"] == 1


class TestDeadLetters:
    def test_looked_at_and_requeued(self, frontier: Frontier) -> None:
        """A dead letter tells why, where and who; requeued, it is a request like any other, whose
        retries and deliveries are counted from zero."""
        frontier.push(
            [{"url": "https://a.example/x", "priority": 4, "meta": {"retry_times": 2, "n": 1}}]
        )
        worker = Member(frontier)
        assert worker.end_all("dead", "spider_error", "KeyError: 'x'") == 1
        status = check_sums(frontier)
        assert (status["dead"], status["finished"], status["done"]) == (1, 1, 0)
        (letter,) = frontier.dead()
        assert (letter.reason, letter.detail) == ("spider_error", "KeyError: 'x'")
        assert (letter.slot, letter.priority, letter.worker) == ("a.example", 4, worker.id)

        assert frontier.requeue([letter.id]) == 1
        assert frontier.requeue([letter.id]) == 0
        assert list(frontier.dead()) == []
        assert check_sums(frontier)["queued"] == 1
        (lease,) = worker.claim(100)
        assert (lease.priority, lease.deliveries) == (4, 0)
        assert loads_fields(lease.entry)["meta"] == {"n": 1}

    def test_another_letter_under_its_id(self, frontier: Frontier) -> None:
        """Read before a reset, requeued after it: what has the id by then stays a dead letter."""
        frontier.push(["https://a.example/old"])
        Member(frontier).end_all("dead", "download")
        old = list(frontier.dead())
        frontier.reset(force=True)
        frontier.push(["https://a.example/new"])
        Member(frontier).end_all("dead", "download")
        (new,) = frontier.dead()
        assert new.id == old[0].id
        assert frontier.requeue_same(old) == 0
        assert list(frontier.dead()) == [new]
        assert frontier.requeue_same([new, new]) == 1
        assert check_sums(frontier)["queued"] == 1

    def test_requeued_first_and_in_their_order(self, frontier: Frontier) -> None:
        """Dead letters go to the front of their queue; the one that died first goes first."""
        frontier.push(f"https://a.example/{i}" for i in range(4))
        worker = Member(frontier)
        worker.end_all("dead", "download")
        frontier.push(["https://a.example/new"])
        assert frontier.requeue() == 4
        assert paths_of(worker.claim(100)) == ["0", "1", "2", "3", "new"]
