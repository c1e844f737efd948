"""Retries that wait in the frontier, delayed requests, and what failed for good."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
from scrapy.http import Request, Response

from lab.servers import RedisServer
from lab.site import Answer, Site
from scrapy_redisq.control import DeadLetter, Frontier
from scrapy_redisq.serialization.meta import delay_of
from scrapy_redisq.serialization.request_fields import loads_fields
from scrapy_redisq.worker.politeness.retry_pause import retry_after, retry_pause
from tests.harness.crawl import LATENESS, Busy, Run, gaps

LATE = 1.0
"""Seconds after it is due by which a request has begun, on a machine that does nothing else."""

RETRIES_ONLY = {"REDISQ_BACKOFF_CODES": ""}
"""No back-off of slots, so that each failure costs a retry."""

LINKS = '<html><a href="/1">1</a></html>'


def pauses(site: Site, path: str) -> list[float]:
    """Seconds between the requests for ``path``."""
    return gaps(hit.at for hit in site.hits if hit.path == path)


def failing(times: int, status: int = 503, **headers: str) -> Callable[[str], Answer | str]:
    """A site whose pages fail so often at first."""
    seen: list[str] = []

    def page(path: str) -> Answer | str:
        seen.append(path)
        if seen.count(path) <= times:
            return Answer("", status, headers)
        return "<html></html>"

    return page


class TestPauses:
    def test_exponential(self) -> None:
        """Anywhere between nothing and the base, doubled with each retry up to the cap."""
        random.seed(4)
        for retry, most in ((1, 2), (2, 4), (3, 8), (9, 300), (10_000, 300)):
            drawn = [retry_pause("exponential", retry) for _ in range(300)]
            assert 0 <= min(drawn) < most * 0.1
            assert most * 0.9 < max(drawn) <= most

    @pytest.mark.parametrize(
        ("header", "pause"),
        [
            (" 7 ", 7.0),
            ("9" * 5_000, 600.0),
            ("0", None),
            ("-5", None),
            ("1.5", None),
            ("\u0663", None),
            ("", None),
            ("Fri, 32 Foo 2025 99:99:99 GMT", None),
            ("x" * 100_000, None),
            ("Mon, 01 Jan 1990 00:00:00 GMT", None),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 600.0),
            ("Fri, 31 Dec 99999999999 23:59:59 GMT", None),
        ],
    )
    def test_retry_after(self, header: str, pause: float | None) -> None:
        """A number of seconds or a date, up to the bound; of anything else the own pause."""
        response = Response("http://a/", headers={"Retry-After": header.encode()})
        assert retry_pause((3.0,), 1, response) == (3.0 if pause is None else pause)

    def test_retry_after_date(self) -> None:
        """Both of RFC 9110's date forms, measured by the server's own clock if it tells it."""
        ahead = time.time() + 300
        for stamp in (formatdate(ahead + 20, usegmt=True), time.asctime(time.gmtime(ahead + 20))):
            headers = {"Retry-After": stamp, "Date": formatdate(ahead, usegmt=True)}
            assert retry_after(Response("http://a/", headers=headers)) == 20
            asked = retry_after(Response("http://a/", headers={"Retry-After": stamp}))
            assert asked is not None
            assert 300 < asked <= 320

    @pytest.mark.parametrize("value", [-1, True, "5", None, float("nan"), float("inf"), 1e300, []])
    def test_bad_delays(self, value: Any) -> None:
        """What is no number of seconds is named, with what the key takes."""
        with pytest.raises(ValueError, match=r"redisq_delay.*takes seconds from 0"):
            delay_of(value)


class TestAddon:
    def test_as_scrapys_under_another_scheduler(self, crawl: Run) -> None:
        """With Scrapy's own scheduler a retry goes back at once, and counts are the same."""
        with Site(failing(2)) as site:
            settings = {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}
            settings["REDISQ_RETRY_DELAYS"] = "300"
            settings["DUPEFILTER_CLASS"] = "scrapy.dupefilters.RFPDupeFilter"
            worker = crawl("follow", site, settings=settings).wait()
            assert max(pauses(site, "/0")) < 300
        assert worker.reason == "finished"
        assert worker.stats["retry/count"] == 2
        assert len(worker.items()) == 1


class TestRetries:
    def test_list_of_delays(self, redis_server: RedisServer, crawl: Run) -> None:
        """Each retry comes after its pause, and soon; the crawl does not end before."""
        with Site(failing(2)) as site:
            settings = {**RETRIES_ONLY, **LATENESS, "REDISQ_RETRY_DELAYS": "0.5,1"}
            busy = Busy(redis_server)
            worker = crawl("follow", site, settings=settings).wait()
            first, second = pauses(site, "/0")
            lost = busy.took([worker])
        assert 0.5 <= first < 0.5 + LATE + lost
        assert 1 <= second < 1 + LATE + lost
        assert worker.reason == "finished"
        stats = worker.stats
        assert stats["retry/count"] == 2
        assert stats["retry/reason_count/503 Service Unavailable"] == 2
        assert stats["redisq/delayed"] == 2
        assert len(worker.items()) == 1
        status = crawl.status()
        assert (status["created"], status["dead"], status["delayed"]) == (3, 0, 0)

    def test_retry_after_of_a_site(self, crawl: Run) -> None:
        """An answer that is no trouble of its host may say when its page is to be fetched again."""
        with Site(failing(1, status=500, **{"Retry-After": "1"})) as site:
            settings = {**RETRIES_ONLY, "REDISQ_RETRY_DELAYS": "0.01"}
            assert crawl("follow", site, settings=settings).wait().reason == "finished"
            (gap,) = pauses(site, "/0")
            assert gap >= 1

    @pytest.mark.parametrize(
        ("session", "middleware"), [(None, ""), ("a", ""), (None, "Proxies"), ("a", "Proxies")]
    )
    def test_redirected_when_it_is_retried(
        self, crawl: Run, session: str | None, middleware: str
    ) -> None:
        """What it leads to is fetched once, by whichever link, as if nothing had failed. So it is
        where all links of a page stay with it, and where a middleware chooses slots."""
        moved = iter([Answer("", 500), Answer("", 302, {"Location": "/1"})])
        links = '<html><a href="/1">1</a><a href="/moved">2</a></html>'
        with Site(lambda path: next(moved) if path == "/moved" else links) as site:
            with crawl.frontier("sessions") as frontier:
                meta = {"redisq_session": session}
                frontier.push([{"url": f"{site.url}/0", "meta": meta}])
            settings = {**RETRIES_ONLY, "REDISQ_RETRY_DELAYS": "0"}
            if middleware:
                chosen = f'{{"crawls.spiders.tools.{middleware}": 610}}'
                settings["DOWNLOADER_MIDDLEWARES"] = chosen
            assert len(crawl("sessions", site, settings=settings).wait().items()) == 2
            assert site.counts() == {"/0": 1, "/1": 1, "/moved": 2}

    def test_get_retry_request(self, redis_server: RedisServer, crawl: Run) -> None:
        """A retry that a callback asks for waits too. It asks for all else once more then."""
        with Site(failing(2, status=200)) as site:
            busy = Busy(redis_server)
            settings = {**LATENESS, "REDISQ_RETRY_DELAYS": "0.5"}
            worker = crawl("again", site, settings=settings).wait()
            lost = busy.took([worker])
            assert all(0.5 <= gap < 0.5 + LATE + lost for gap in pauses(site, "/0"))
            assert site.counts() == {"/0": 3, "/mend": 2}
        assert [item["retries"] for item in worker.items()] == [2]
        assert worker.stats["retry/reason_count/empty"] == 2

    def test_is_not_inherited(self, crawl: Run) -> None:
        """What a link has copied from the meta of a page that was retried says nothing of itself:
        requeued, it asks for the same as before."""
        page = failing(1, status=200)
        with Site(lambda path: page(path) if path == "/0" else "<html></html>") as site:
            settings = {"REDISQ_RETRY_DELAYS": "0"}
            crawl("copies", site, settings=settings).wait()
            with crawl.frontier("copies") as frontier:
                assert frontier.requeue() == 1
            crawl("copies", site, settings=settings).wait()
            assert site.counts() == {"/0": 2, "/link": 2, "/leaf": 1}

    def test_redirected_to_another_host(self, crawl: Run) -> None:
        """It is of its own host, and not of the one that the retry was of."""
        empty = iter(["", ""])

        def page(path: str) -> Answer | str:
            _, _, port = site.url.rpartition(":")
            to = Answer("", 302, {"Location": f"http://localhost:{port}/1"})
            return next(empty, to) if path == "/0" else "<html></html>"

        with Site(page) as site:
            (item,) = crawl("again", site, {"REDISQ_RETRY_DELAYS": "0"}).wait().items()
        assert item["slot"] == "localhost"

    def test_on_the_side(self, crawl: Run) -> None:
        """What a callback downloads by itself is retried at once, as no scheduler has a part."""
        page = failing(1)
        with Site(lambda path: page(path) if path == "/side" else "<html></html>") as site:
            worker = crawl("inline", site, settings={"REDISQ_RETRY_DELAYS": "300"}).wait()
            assert max(pauses(site, "/side")) < 300
        assert [item["meta"] for item in worker.items()] == [False]


class TestDelays:
    def test_a_delayed_request(self, redis_server: RedisServer, crawl: Run) -> None:
        """It starts when it is due, its children at once: the delay is used up."""
        links = {"/0": "/1", "/1": "/2", "/2": "/3"}
        with Site(lambda path: f'<html><a href="{links.get(path, path)}">x</a></html>') as site:
            busy = Busy(redis_server)
            worker = crawl("delayed", site, LATENESS, seconds="1").wait()
            lost = busy.took([worker])
            at = [hit.at - site.hits[0].at for hit in site.hits]
        assert worker.reason == "finished"
        assert len(at) == 4
        assert 1 <= at[1] < 1 + LATE + lost
        assert at[3] < at[1] + 0.9 + lost
        assert not any(item["delay_left"] for item in worker.items())

    def test_a_bad_delay(self, crawl: Run) -> None:
        """It is logged and counted; the request is not lost."""
        with Site(lambda path: LINKS) as site:
            worker = crawl("delayed", site, seconds="'5'").wait()
            assert set(site.counts()) == {"/0", "/1"}
        assert worker.reason == "finished"
        assert worker.log.count("takes seconds from 0 to 31,536,000") == 1
        assert worker.stats["redisq/bad_delay"] == 1

    def test_pushed(self, frontier: Frontier) -> None:
        """A delay in the meta of a pushed request counts, and is not kept in the entry."""
        meta = {"redisq_delay": 3_600, "n": 1}
        request = Request("https://a.example/2", meta=meta)
        result = frontier.push([{"url": "https://a.example/1", "meta": meta}, request])
        assert result.accepted == 2
        status = frontier.status()
        assert (status["delayed"], status["queued"]) == (2, 0)
        assert meta == {"redisq_delay": 3_600, "n": 1}
        key = "redisq:{books:0}:delayed"
        for record, due in frontier.client.zrange(key, 0, -1, withscores=True):
            assert b"redisq_delay" not in record
            assert 3_500 < due / 1e6 - time.time() < 3_700
        bad = frontier.push([{"url": "https://a.example/3", "meta": {"redisq_delay": "x"}}])
        assert (bad.accepted, len(bad.errors)) == (0, 1)


class TestDeadLetters:
    def test_how_requests_end(self, crawl: Run) -> None:
        """What failed for good is a dead letter, with all that is known; what the spider or a
        robots.txt has dealt with is none."""

        def page(path: str) -> Answer | str | None:
            match path.partition("?")[0]:
                case "/robots.txt":
                    return "User-agent: *\nDisallow: /forbidden"
                case "/503":
                    return Answer("", 503)
                case "/404":
                    return None
            return "<html></html>"

        with Site(page) as site, crawl.frontier("ends") as frontier:
            settings = {
                **RETRIES_ONLY,
                "REDISQ_RETRY_DELAYS": "0",
                "RETRY_TIMES": 2,
                "ROBOTSTXT_OBEY": True,
            }
            worker = crawl("ends", site, settings=settings).wait()
            assert worker.reason == "finished"
            assert frontier.status()["state"] == "complete"
            letters: dict[str, DeadLetter] = {}
            for letter in frontier.dead():
                fields = loads_fields(letter.entry)
                assert letter.slot == "127.0.0.1"
                assert 0 < letter.at - letter.claimed_at < 60
                assert abs(letter.at - time.time()) < 60
                assert letter.worker
                letters[fields["url"].rpartition("/")[2]] = letter
            assert {
                name: (letter.reason, letter.status, letter.error.rpartition(".")[2])
                for name, letter in letters.items()
                if name != "refused"
            } == {
                "503": ("retries", 503, ""),
                "503?never": ("retries", 503, ""),
                "raises": ("spider_error", 200, "KeyError"),
                "404?errback": ("spider_error", 404, "KeyError"),
                "errback": ("spider_error", 0, "KeyError"),
            }
            refused = letters["refused"]
            assert (refused.reason, refused.status) == ("retries", 0)
            assert "Connect" in refused.error
            assert "in raises" in letters["raises"].detail
            assert loads_fields(letters["503"].entry)["meta"]["retry_times"] == 2
            responses = frontier.status()["responses"]
        assert responses == {
            stat.removeprefix("downloader/response_status_count/"): number
            for stat, number in worker.stats.items()
            if stat.startswith("downloader/response_status_count/")
        }
        assert {"200", "404", "503"} <= set(responses)
        assert site.counts()["/503"] == 3
        assert site.counts()["/503?never"] == 1
        ended = {item["url"].rpartition("/")[2] for item in worker.items()}
        assert ended == {"503?handled", "503?errback", "dealt-with"}
        stats = worker.stats
        assert stats["redisq/dead/retries"] == 3
        assert stats["redisq/dead/spider_error"] == 3
        assert "has 6 dead letters" in worker.log
        (line,) = (
            line
            for line in worker.log.splitlines()
            if "Dead letter (spider_error): " in line and "/raises" in line
        )
        assert line.endswith("/raises> (callback raises): builtins.KeyError: 'no such thing'"), line
        assert worker.log.count("in raises") == 3, "tracebacks are Scrapy's alone"
        assert "scrapy redisq dead list ends" in worker.log

    def test_too_large_a_retry(self, crawl: Run) -> None:
        """A retry that has grown past REDISQ_MAX_ENTRY_BYTES: its page is dead, not done."""
        with Site(failing(1)) as site, crawl.frontier() as frontier:
            settings = {**RETRIES_ONLY, "REDISQ_MAX_ENTRY_BYTES": 1_024, "REDISQ_RETRY_DELAYS": "0"}
            crawl("follow", site, settings=settings, first=f"/{'x' * 940}").wait()
            (letter,) = frontier.dead()
        assert (letter.reason, letter.slot) == ("too_large", "127.0.0.1")
