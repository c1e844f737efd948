"""Requests that come again: intervals, what ends them, and what becomes of failures and kills."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from lab.servers import wait_until
from lab.site import Answer, Site
from scrapy_redisq.control import Frontier
from scrapy_redisq.serialization.recurrence import Answer as Known
from scrapy_redisq.serialization.recurrence import Recurrence, of_period, seconds_of, seen_ttl_of
from tests.harness.command import Redisq
from tests.harness.crawl import Run, constants, gaps
from tests.harness.shard import read_shard

CONDITIONS = {"if-none-match", "if-modified-since"}


class TestIntervals:
    def test_texts(self) -> None:
        """A number of seconds, or one with a unit."""
        assert [seconds_of(text) for text in ("90", "90s", "1.5m", "2h", "7d", "1w", 3, 0.5)] == [
            *(90, 90, 90, 7_200, 604_800, 604_800, 3, 0.5)
        ]

    @pytest.mark.parametrize(
        "value",
        [
            *("", "h", "-1h", "1y", "2 h 3", "9999d", True, None, float("nan"), [], 0, "0.5s"),
            10**400,
            *({"min": "1h"}, {"every": "1h", "min": "2h"}, {"every": "2h", "max": "1h"}),
            *({"every": "1h", "often": 1}, {"every": "1h", "known": ["x"]}, {"every": {}}),
        ],
    )
    def test_bad_values(self, value: Any) -> None:
        """The error names the key."""
        with pytest.raises(ValueError, match="redisq_every"):
            Recurrence.of(value)

    def test_it_adapts(self) -> None:
        """Later while the content stays the same, sooner when it changes, within the bounds. An
        answer that says nothing of the content changes nothing."""
        one = Recurrence.of({"every": "4h", "min": "1h", "max": "8h"})
        first, other = Known(b"12345678", b'"x"'), Known(b"87654321")
        one = one.after(first)
        assert one.every == 4 * 3_600
        assert one.headers == {b"If-None-Match": b'"x"', b"If-Modified-Since": b""}
        assert one.after(None) == one
        assert [one.after(known).every / 3_600 for known in (first, Known(b""), other)] == [
            *(6, 6, 2.5)
        ]
        assert Recurrence.of(one.stored()) == one
        for _ in range(9):
            one = one.after(Known(b""))
        assert (one.every, one.known) == (8 * 3_600, first)


class TestSeenTtl:
    @pytest.mark.parametrize(
        "value", ["7x", 0, 59, "0.9m", -60, True, None, float("nan"), "2y", []]
    )
    def test_bad_values(self, value: Any) -> None:
        """The error names the key."""
        with pytest.raises(ValueError, match="redisq_seen_ttl"):
            seen_ttl_of(value)

    def test_periods(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request is another one each period, and periods begin at different times."""
        now = 1_000_000.0
        monkeypatch.setattr("time.time", lambda: now)
        keys = [bytes([n] * 20) for n in range(0, 256, 4)]
        ends = set()
        for key in keys:
            seen = set()
            for second in range(100):
                now = 1_000_000.0 + second
                if of_period(key, 50) not in seen:
                    ends.add(second % 50)
                seen.add(of_period(key, 50))
            assert len(seen) in (2, 3)
        assert len(ends) > 40


def test_until_it_is_removed(crawl: Run, redisq: Redisq) -> None:
    """A page comes again, also one that is redirected; an adaptive one later and later while it is
    unchanged. The crawl is open until the last one is removed."""
    times = {"/watched": 0, "/adaptive": 0}
    moves: list[str] = []

    def page(path: str) -> Answer | str:
        if path == "/moved":
            moves.append(path)
            return Answer("", 302, {"Location": "/target"})
        if path not in times:
            return f'<a href="{path}/link">x</a>' if path.count("/") == 1 else ""
        times[path] += 1
        if path == "/adaptive":
            return Answer("", 200 if times[path] == 1 else 304, {"ETag": '"x"'})
        return f'<a href="{path}/{times[path]}">x</a>'

    with Site(page) as site, crawl.frontier("follow") as frontier:
        for path, every in (("/moved", 1), ("/adaptive", {"every": 1, "max": 60})):
            assert frontier.push([f"{site.url}{path}"], every=every).accepted == 1
        pushed = redisq("push", "follow", "--every", "1s", f"{site.url}/watched")
        assert pushed.out == "follow: 1 new request, 0 duplicates\n"
        worker = crawl("follow", site)
        wait_until(lambda: times["/watched"] >= 5, 60, "it comes again")

        def told() -> dict[str, float]:
            """What is fetched just now is not listed."""
            return {one["url"].rpartition("/")[2]: one["every"] for one in frontier.schedule()}

        wait_until(lambda: told().get("adaptive", 0) > 2, 20, "it comes later")
        wait_until(lambda: "/adaptive" in redisq("schedule", "follow").out, 20, "it is listed")
        for path in (*times, "/moved"):
            wait_until(functools.partial(frontier.unschedule, site.url + path), 20, path)
        assert worker.wait().reason == "finished"
        status = frontier.status()
    hits = [hit for hit in site.hits if hit.path == "/adaptive"]
    assert "if-none-match" not in hits[0].headers
    assert {hit.headers["if-none-match"] for hit in hits[1:]} == {'"x"'}
    watched = [hit.at for hit in site.hits if hit.path == "/watched"]
    assert min(gaps(watched)) >= 0.99
    assert {f"/watched/{n}" for n in range(1, 6)} <= site.counts().keys()
    assert site.counts()["/target"] == len(moves) >= 3
    assert (status["dead"], status["state"]) == (0, "complete")
    assert status["created"] == status["finished"]
    assert "Traceback" not in worker.log


def test_each_time_as_the_first(crawl: Run) -> None:
    """What happened to it the time before, retries and redirects, does not add up; filters of
    Scrapy hold each time, and links that stay in the process are followed once."""

    def page(path: str) -> Answer | str:
        if path == "/itself":
            again = site.counts()[path] % 2
            return Answer("", 302, {"Location": path}) if again else ""
        if path == "/elsewhere":
            return Answer("", 302, {"Location": f"http://localhost:{site.port}/forbidden"})
        return Answer("", 500) if path == "/failing" else ""

    paths = ("/itself", "/elsewhere", "/failing")
    settings = {"REDISQ_RETRY_DELAYS": 0, "RETRY_TIMES": 1}

    def waiting() -> list[bytes]:
        found: Any = frontier.client.zrange("redisq:{on_site:0}:delayed", 0, -1)
        return found if len(found) == len(paths) else []

    with Site(page) as site, crawl.frontier("on_site") as frontier:
        frontier.push([{"url": f"{site.url}/itself", "dont_filter": True}], every=1)
        frontier.push([site.url + path for path in paths[1:]], every=1)
        worker = crawl("on_site", site, settings=settings)
        wait_until(lambda: all(site.counts()[path] >= 4 for path in paths), 60, "all of them")
        records = wait_until(waiting, 30, "all that waits")
        worker.terminate().wait()
    assert {record.split(b":")[1] for record in records} == {b"0"}
    assert b"redirect" not in b"".join(records)
    assert site.counts()["/kept"] == 1
    assert "/forbidden" not in site.counts()
    assert "comes again in 1 s" in worker.log


def test_what_is_asked_on_condition(crawl: Run) -> None:
    """Not a page of which something went wrong, whose content would be lost, nor what a page is
    redirected to, which is another one."""

    def page(path: str) -> Answer | str:
        if path == "/moved" and site.counts()[path] > 1:
            return Answer("", 302, {"Location": "/new"})
        return Answer("", 200, {"ETag": '"x"', "Last-Modified": "Thu, 26 Nov 2026 08:00:00 GMT"})

    with Site(page) as site, crawl.frontier("on_site") as frontier:
        broken = {"url": f"{site.url}/broken", "callback": "parse_broken"}
        frontier.push([broken, f"{site.url}/moved"], every={"every": 1, "max": 1})
        crawl("on_site", site)
        wait_until(lambda: site.counts()["/new"] >= 2 <= site.counts()["/broken"], 30, "pages")
    asked = {hit.path for hit in site.hits if hit.headers.keys() & CONDITIONS}
    assert asked == {"/moved"}


def test_seen_for_a_while(crawl: Run) -> None:
    """A link is followed again when its TTL is over and not before. So is what its page asks for
    unfiltered. What comes again begins one series, whichever pages ask for it. A bad TTL is told,
    and loses no request."""
    places = ("settings.checks", "serialization.recurrence")
    short = {f"scrapy_redisq.{place}.SHORTEST_SEEN_TTL": 1.0 for place in places}
    settings = {"REDISQ_SEEN_TTL": "1s", **constants(short)}
    with Site(lambda path: "") as site, crawl.frontier("aging") as frontier:
        frontier.push([f"{site.url}/hub"], every=1)
        worker = crawl("aging", site, settings=settings)
        leaves = ("/leaf", "/soon", "/bad", "/picture-leaf", "/picture-soon")
        wait_until(lambda: all(site.counts()[path] >= 2 for path in leaves), 30, "leaves")
        client: Any = frontier.client
        swept = lambda: len(read_shard(client, "aging", 0).generations) <= 2  # noqa: E731
        wait_until(swept, 10, "old generations to be deleted")
        worker.terminate().wait()
    assert site.counts()["/steady"] == site.counts()["/daily"] == 1
    at = [hit.at for hit in site.hits if hit.path == "/leaf"]
    assert min(gaps(at)) > 0.9
    assert site.counts()["/picture-leaf"] <= site.counts()["/leaf"]
    assert site.counts()["/again"] <= site.counts()["/hub"]
    assert worker.log.count("'7x': takes seconds") == 1
    assert worker.stats["redisq/bad_seen_ttl"] >= 2
    assert "Traceback" not in worker.log


def test_what_is_no_request(frontier: Frontier) -> None:
    """Of whoever else writes to Redis: it hides nothing that comes again."""
    frontier.push(["https://books.example/"], every="1d", after="1h")
    for member in ("x redisq_every", "7:0:x:redisq_every", b"8:0:1:\xffredisq_every"):
        frontier.client.zadd("redisq:{books:0}:delayed", {member: 9e15})
    assert [one["every"] for one in frontier.schedule()] == [86_400]
    assert frontier.unschedule("https://books.example/") == 1
