"""Requests that cannot be stored: fetched by one worker, and lost with none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lab.servers import RedisServer
from lab.site import Answer, Site, linked_pages
from scrapy_redisq.control import Frontier
from tests.harness.crawl import Run, finish

PAGES = {f"/{kind}/{n}" for kind in ("page", "part", "leaf") for n in range(10)}


class TestCrawls:
    @pytest.mark.parametrize("spider", ["odd", "odd_start"])
    def test_two_workers(self, crawl: Run, redis_server: RedisServer, spider: str) -> None:
        """A page that cannot be stored is fetched by each worker that has a list of it, and once;
        counted as Scrapy does. Start requests of the kind are each worker's own."""
        own = spider == "odd_start"
        with Site(lambda path: Answer("x", delay=0.05)) as site:
            workers = crawl.fleet(2, spider, site, {"REDISQ_RETRY_DELAYS": "0"})
            finish(workers)
            stats = [worker.stats for worker in workers]
            kept = [each.get("scheduler/enqueued/memory", 0) for each in stats]
            assert set(kept) <= ({20} if own else {0, 20})
            counts = {path: n for path, n in site.counts().items() if "list" not in path}
            fetches = {path: 1 if "leaf" in path else kept.count(20) for path in PAGES}
            assert counts == fetches, workers[0].log
        assert sum(len(worker.items()) for worker in workers) == sum(fetches.values())
        assert kept == [each.get("scheduler/dequeued/memory", 0) for each in stats]
        with Frontier.from_url(redis_server.url, spider) as frontier:
            assert frontier.status()["dead"] == 0
        assert "make it" not in workers[0].log  # a lock is nothing to be stored
        assert any("give plain values in its place" in worker.log for worker in workers)

    def test_slots_that_are_no_names(self, redis_server: RedisServer, crawl: Run) -> None:
        """The downloader refuses them: each is a dead letter of its own, and no worker stops."""
        slots = [["a"], {"a": 1}, [[]]]
        with (
            Site(linked_pages(3)) as site,
            Frontier.from_url(redis_server.url, "follow") as frontier,
        ):
            frontier.push(
                {"url": f"{site.url}/1?{number}", "meta": {"download_slot": slot}}
                for number, slot in enumerate(slots)
            )
            assert crawl("follow", site).wait().reason == "finished"
            assert [letter.reason for letter in frontier.dead()] == ["download"] * len(slots)
            assert frontier.status()["state"] == "complete"

    def test_the_same_object_again(self, crawl: Run, redis_server: RedisServer) -> None:
        """A middleware or a callback hands in the very object that is being dealt with: each time
        it is another request."""
        with Site(lambda path: "x") as site:
            worker = crawl("odd_again", site).wait(30)
        assert worker.reason == "finished"
        items = Counter(item["url"].rpartition("/")[2] for item in worker.items())
        assert items == {"0": 1, "1": 1, "2": 2, "3": 2}
        with Frontier.from_url(redis_server.url, "odd_again") as frontier:
            status = frontier.status()
        assert (status["state"], status["dead"]) == ("complete", 0)

    def test_failures_are_dead_letters(self, crawl: Run, redis_server: RedisServer) -> None:
        """Of the page that stands for them; requeued it asks for them again."""
        broken = {"/page/3", "/part/4"}
        with Site(lambda path: Answer("", 500) if path in broken else Answer("x")) as site:
            settings = {"RETRY_TIMES": 0}
            assert crawl("odd", site, settings).wait().reason == "finished"
            with Frontier.from_url(redis_server.url, "odd") as frontier:
                letters = list(frontier.dead())
                assert {letter.reason for letter in letters} == {"retries"}
                assert any("which stayed in its process" in letter.detail for letter in letters)
                broken.clear()
                frontier.requeue()
            assert crawl("odd", site, settings).wait().reason == "finished"
            assert site.counts().keys() >= PAGES
        with Frontier.from_url(redis_server.url, "odd") as frontier:
            assert frontier.status()["dead"] == 0

    def test_tools(self, crawl: Run, tmp_path: Path) -> None:
        """Scrapy's engine status counts what waits; JOBDIR, and an object that requests of a page
        share, are warned of, each once."""
        with Site(lambda path: "x") as site:
            worker = crawl("tools", site, {"JOBDIR": tmp_path / "job"}).wait()
            assert worker.reason == "finished"
        assert worker.log.count("JOBDIR is of no use here") == 1
        assert worker.log.count("holds an object in meta['rows']") == 1
        statuses = [item["status"] for item in worker.items()]
        assert all(isinstance(number, int) for status in statuses for number in status)
        assert max(status[0] for status in statuses) > 5
        assert max(status[1] for status in statuses) > 0
