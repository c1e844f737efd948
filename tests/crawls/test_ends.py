"""Pages that end before they are done: what is cancelled, and spiders that are closed."""

from __future__ import annotations

import json
from pathlib import Path

import scrapy

from lab.servers import RedisServer, wait_until
from lab.site import Answer, Site, linked_pages
from scrapy_redisq.serialization.request_fields import loads_fields
from tests.harness.crawl import Run, constants, several


def page(path: str) -> Answer | str:
    status = path.partition("?")[0][1:]
    return Answer("<html></html>", int(status) if len(status) == 3 and status.isdigit() else 200)


def test_close_spider(redis_server: RedisServer, crawl: Run) -> None:
    """CloseSpider: the page is not done, the run is not complete, and goes on when it is started.

    A callback, an errback, a spider middleware or start() may raise it.
    """
    places = ["callback", "generator", "errback", "input", "output"]
    places += ["start"] if scrapy.version_info >= (2, 19) else []  # before, it is any exception

    def settings(where: str = "") -> list[dict[str, str]]:
        return [
            {"REDISQ_URL": redis_server.url, "REDISQ_FRONTIER": place, "WHERE": where or place}
            for place in places
        ]

    def state(place: str) -> tuple[str, int, int]:
        status = crawl.status(place)
        return status["state"], status["queued"], status["dead"]

    # The page, and the link that it had before.
    queued = {"callback": 1, "generator": 2, "errback": 1, "input": 1, "output": 2, "start": 0}
    with Site(page) as site:
        assert several("closes", site.url, settings()) == ["enough"] * len(places)
        assert {place: state(place) for place in places} == {
            place: ("stopped", queued[place], 0) for place in places
        }
        hits = site.counts()
        assert several("closes", site.url, settings("nowhere")) == ["finished"] * len(places)
        hits = site.counts() - hits
    assert {state(place) for place in places} == {("complete", 0, 0)}
    again = {"/404?errback", "/0?callback", "/0?generator", "/0?input", "/0?output"}
    assert {path for path in hits if not path.startswith("/1")} == again


def test_told_to_stop_before_the_engine_runs(crawl: Run) -> None:
    """The worker has joined, and leaves: others need not wait for it, nor for slow pages that it
    has begun."""
    with Site(lambda path: Answer("", delay=8)) as site:
        worker = crawl("starts_slowly", site)
        wait_until(lambda: "begins" in worker.log, 20, "the engine starts")
        assert worker.terminate().wait().reason == "shutdown"


def test_requests_ignored_while_closing(crawl: Run) -> None:
    """They go back: a plugin that counts requests stops a crawl by ignoring what is on its way."""
    done: list[str] = []
    with Site(page) as site:
        for _ in range(3):
            worker = crawl("ignored", site).wait()
            done += [item["url"] for item in worker.items()]
    assert worker.reason == "finished"
    assert sorted(done) == [f"{site.url}/{n}" for n in range(10)]
    status = crawl.status("ignored")
    assert (status["state"], status["finished"], status["dead"]) == ("complete", 10, 0)


SLOW = {"REDISQ_SLOT_LIMITS": '{"127.0.0.1": {"delay": 0.1}, "127.0.0.2": {"delay": 60}}'}
"""Downloads on the side wait for their turns, on the second host for long."""


def test_closing_while_pipelines_download(crawl: Run, tmp_path: Path) -> None:
    """Items of a media pipeline are not stored without their files: they come again, with them.

    Also those that wait for a file that the item of another page has asked for.
    """
    settings = {
        **SLOW,
        "ITEM_PIPELINES": '{"crawls.spiders.ends.Files": 1, "crawls.sinks.LinesSink": 300}',
        "FILES_STORE": tmp_path / "files",
        "FILE": tmp_path / "items",
    }
    with Site(page, 2) as site, crawl.frontier("with_files") as frontier:
        worker = crawl("with_files", None, settings, sites=site.urls(2))
        wait_until(lambda: any("file" in path for path in site.counts()), 30, "some files")
        # start() is read while pages are fetched.
        wait_until(lambda: frontier.status()["created"] == 11, 30, "all start requests")
        worker.terminate().wait()
        status = frontier.status()
        assert (status["dead"], status["finished"] + status["queued"]) == (0, 11)
        assert status["queued"] > 0
        settings["REDISQ_SLOT_LIMITS"] = "{}"
        assert crawl("with_files", None, settings, sites=site.urls(2)).wait().reason == "finished"
    rows = [json.loads(line) for line in (tmp_path / "items").read_text().splitlines()]
    found = {(row["url"].rpartition("/")[2], len(row["files"]), row["key"]) for row in rows}
    assert sorted((int(page), files) for page, files, _ in found) == [(n, 2) for n in range(11)]


def test_pages_whose_responses_are_of_other_requests(crawl: Run) -> None:
    """What fails is the page, also if a downloader middleware answered it with the response to
    another request, or several pages with one response."""
    with Site(page) as site:
        worker = crawl("relayed", site).wait()
    assert worker.reason == "finished"
    assert "Scraper bug" not in worker.log
    found = {
        loads_fields(letter.entry)["url"].partition(site.url)[2]: letter.reason
        for letter in crawl.letters("relayed")
    }
    expected = {"/raises": "spider_error", "/item": "item_error"}
    expected |= dict.fromkeys(["/same/1", "/same/2", "/same/3"], "item_error")
    assert found == expected


def test_a_start_that_ends_when_it_is_cancelled(crawl: Run) -> None:
    """It was not read to its end: the run is not complete, and goes on when it is started again."""
    run = {"REDISQ_RUN": "one"}
    with Site(page) as site, crawl.frontier("unread") as frontier:
        worker = crawl("unread", site, {**run, "WHERE": ""})
        wait_until(lambda: frontier.status().get("finished") == 1, 30, "the first page")
        assert worker.terminate().wait().reason == "shutdown"
        assert frontier.status()["state"] == "stopped"
        assert crawl("unread", site, {**run, "WHERE": "all"}).wait().reason == "finished"
        assert frontier.status()["state"] == "complete"
        assert site.counts() == {"/0": 1, "/1": 1}


def test_sigterm_while_the_spider_is_being_closed(crawl: Run, tmp_path: Path) -> None:
    """The process does not end before items are written and the worker has left."""
    settings = {
        "ITEM_PIPELINES": '{"crawls.sinks.LinesSink": 300}',
        "FILE": tmp_path / "items",
        "BATCH_SECONDS": 60,
        "CLOSESPIDER_PAGECOUNT": 3,
    }
    slow = tmp_path / "slow"
    slow.touch()
    with Site(page) as site, crawl.frontier("many") as frontier:
        worker = crawl("many", site, settings)
        worker.wait_for("Closing spider")
        wait_until(lambda: frontier.status()["leased"] >= 3, 30, "pages that wait")
        worker.terminate()
        worker.wait_for("SIGTERM")
        slow.unlink()
        assert worker.wait().reason == "closespider_pagecount"
        status = frontier.status()
        rows = (tmp_path / "items").read_text().splitlines()
        assert (status["workers"], status["finished"]) == ([], len(rows))
        assert len(rows) >= 3


def test_what_is_cancelled(crawl: Run) -> None:
    """Something that a callback, a pipeline, a download handler or start() awaits is cancelled, or
    a log formatter raises: a dead letter, and the crawl ends."""
    with Site(page) as site:
        worker = crawl("cancelled", site).wait(30)
    # Before Scrapy 2.19 a start() that fails is nothing special.
    assert worker.reason in {"start_error", "finished"}
    assert "what start() awaited has been cancelled" in worker.log
    found = {}
    for letter in crawl.letters("cancelled"):
        name = loads_fields(letter.entry)["url"].rpartition("/")[2]
        found[name] = (letter.reason, letter.error.rpartition(".")[2])
    assert found == {
        "coroutine": ("spider_error", "Cancelled"),
        "async_generator": ("spider_error", "Cancelled"),
        "generator": ("spider_error", "ValueError"),
        "of_items": ("item_error", "Cancelled"),
        "not_told": ("item_error", "ValueError"),
        "data:,of_handler": ("download", "Cancelled"),
    }
    items = {item["url"].rpartition("/")[2] for item in worker.items()}
    assert items >= {"async_generator", "generator", "fine"}


def test_retries_that_a_spider_gives_up(crawl: Run) -> None:
    """get_retry_request() that returns None leaves a dead letter, from any kind of callback.

    Of a page that stays in this process it has no entry. What a callback has downloaded on the
    side leaves none.
    """
    with Site(page) as site:
        settings = {"REDISQ_BACKOFF_CODES": "", "RETRY_TIMES": 1, "REDISQ_RETRY_DELAYS": "0"}
        worker = crawl("gives_up", site, settings).wait()
    assert worker.reason == "finished"
    assert "Traceback" not in worker.log
    assert worker.stats["paging/max_reached"] == 1
    names = {"plain": 200, "generator": 200, "coroutine": 200, "async_generator": 200}
    names |= {"404?plain": 404, "404?generator": 404}
    letters = crawl.letters("gives_up")
    found = {
        loads_fields(letter.entry)["url"].rpartition("/")[2]: (letter.reason, letter.status)
        for letter in letters
        if letter.entry
    }
    assert found == {name: ("retries", status) for name, status in names.items()}
    (local,) = [letter for letter in letters if not letter.entry]
    assert (local.reason, local.status) == ("retries", 200)
    assert worker.stats["redisq/dead/retries"] == len(names) + 1
    assert worker.stats["mine/max_reached"] == len(names) + 1
    assert len(worker.items()) == 3  # generator, on the side, fine


def test_a_worker_that_fails(crawl: Run) -> None:
    """A supervisor is told to start it again. Its pages go back as those of a dead worker do: a
    page by which all workers fail becomes a dead letter."""
    fails = constants({"scrapy_redisq.worker.worker.ENOUGH_QUEUED": None})
    with Site(linked_pages(20, delay=0.2)) as site:
        worker = crawl("follow", site, {**fails, "REDISQ_FEEDS": '{"feed": {}}'}).wait()
    assert (worker.reason, worker.process.returncode) == ("redisq_failed", 1)
    assert len(crawl.status()["workers"]) == 1


def test_a_login(crawl: Run) -> None:
    """A POST that is answered with a cookie is warned of once, also where it leads elsewhere; what
    has cookies of its own, each worker by itself, or none, is not."""

    def cookies(path: str) -> Answer:
        cookie = {"Set-Cookie": f"session={path[1:]}"}
        if path in ("/login", "/again"):
            return Answer(status=302, headers={**cookie, "Location": "/home"})
        return Answer("x", headers=cookie)

    with Site(cookies) as site:
        worker = crawl("logs_in", site).wait()
    assert worker.reason == "finished"
    told = [line for line in worker.log.splitlines() if "answered with a cookie" in line]
    assert len(told) == 1
    assert "/login has been" in told[0] or "/again has been" in told[0]
