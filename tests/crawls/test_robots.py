"""robots.txt: fetched once for the fleet, heeded by all of it, with its Crawl-delay."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy.robotstxt import ProtegoRobotParser, PythonRobotParser

from lab.servers import wait_until
from lab.site import Answer, Site
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.middlewares.robots import MAX_TEXT, asked_delay, heeded
from tests.harness.crawl import Crawl, Run, constants, finish, gaps
from tests.harness.worker import EXACT, NAME, Worker, ask, key

HOST = "a.example:8080"

# Reading


@pytest.mark.parametrize("parser", [ProtegoRobotParser, PythonRobotParser])
@pytest.mark.parametrize(
    ("lines", "delay"),
    [
        ("Crawl-delay: 5", 5),
        ("Request-rate: 1/20", 20),
        ("Crawl-delay: 5\nRequest-rate: 2/4", 5),
        ("Crawl-delay: 1\nRequest-rate: 2/4", 2),
        ("Crawl-delay: -5", 0),
        ("Crawl-delay: inf", 0),
        ("Crawl-delay: nan", 0),
        ("Crawl-delay: soon", 0),
        ("Request-rate: often", 0),
        ("Request-rate: 1/0", 0),
        ("Disallow: /x", 0),
    ],
)
def test_delays(parser: Any, lines: str, delay: float) -> None:
    """The slower of Crawl-delay and Request-rate; what makes no sense asks for nothing."""
    text = f"User-agent: *\nDisallow: /private\n{lines}\n"
    assert asked_delay(parser(text.encode(), None), "anybody") == delay


def test_no_rule_is_cut_in_two() -> None:
    """Half of one may forbid more."""
    rule = b"Disallow: /" + b"x" * 40 + b"\n"
    kept = heeded(b"User-agent: *\n" + rule * (MAX_TEXT // len(rule) + 1))
    assert MAX_TEXT - len(rule) < len(kept) <= MAX_TEXT
    assert kept.endswith(rule.strip())


# Protocol


@pytest.fixture
def robots(client: redis.Redis, worker: Worker) -> Callable[..., tuple[str, bytes, float]]:
    def run(host: str = HOST, **options: Any) -> tuple[str, bytes, float]:
        return execute(client, calls.robots_txt(NAME, 0, worker.joined.run, host, **options))

    return run


def test_one_fetches_the_others_wait(robots: Callable[..., Any]) -> None:
    """Until the text is there, which is then for all."""
    assert [robots()[0], robots()[0]] == ["fetch", "wait"]
    for told in (b"", b"\x00text\xff"):
        robots(text=told, ttl=60)
        what, text, valid = robots()
        assert (what, text) == ("known", told)
        assert 59 < valid <= 60
    assert robots(host="b.example")[0] == "fetch"


def test_who_fetches_may_change(robots: Callable[..., Any], client: redis.Redis) -> None:
    """Another one does so when the first has not told the text in time, or says that it will not;
    but what it says so late takes nobody's text away."""
    robots()
    assert 25 < client.zscore(key("robots_until"), HOST) / 1e6 - client.time()[0] <= 31
    client.zadd(key("robots_until"), {HOST: 1})
    assert [robots()[0], robots()[0]] == ["fetch", "wait"]
    robots(text=b"", ttl=0)
    assert robots()[0] == "fetch"
    robots(text=b"text", ttl=60)
    robots(text=b"", ttl=0)
    assert robots()[0] == "known"


def test_texts_that_a_person_has_deleted(robots: Callable[..., Any], client: redis.Redis) -> None:
    """As the key was damaged: nobody waits for who fetched them once."""
    robots(text=b"text", ttl=60)
    client.delete(key("robots"))
    assert [robots()[0], robots()[0]] == ["fetch", "wait"]


def test_texts_expire(robots: Callable[..., Any], client: redis.Redis) -> None:
    """An old one is fetched anew; those that nobody asks for make room."""
    robots(text=b"old", ttl=60)
    robots(host="other", text=b"old", ttl=60)
    client.zadd(key("robots_until"), {HOST: 1, "other": 1})
    assert robots()[0] == "fetch"
    robots(text=b"new", ttl=60)
    assert robots()[:2] == ("known", b"new")
    assert client.hkeys(key("robots")) == [HOST.encode()]
    assert client.zcard(key("robots_until")) == 1


def test_a_new_run_knows_nothing(
    robots: Callable[..., Any], worker: Worker, client: redis.Redis
) -> None:
    """Who is still in the old one is told so, and leaves no trace."""
    robots(text=b"old", ttl=60)
    worker.exchange_all()
    worker.leave()
    new = Worker(client, NAME, EXACT)
    assert new.joined.new
    assert robots()[0] == "lost"
    assert robots(text=b"late", ttl=60)[0] == "lost"
    assert client.exists(key("robots"), key("robots_until")) == 0


@pytest.fixture
def tell(client: redis.Redis) -> Callable[..., bool]:
    def run(worker: Worker, delay: float, host: str = HOST) -> bool:
        return execute(client, calls.crawl_delay(NAME, 0, worker.joined.run, host, "slot", delay))

    return run


def delay(client: redis.Redis) -> float:
    return int(client.hget(key("slot:slot"), "robots") or 0) / 1e6


def test_delay_of_a_slot(tell: Callable[..., bool], worker: Worker, client: redis.Redis) -> None:
    """Claims heed it, others hear of it, and the slot is forgotten when nothing happens."""
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(key("wake"))
        pubsub.get_message(timeout=1)
        worker.send((f"/{n}" for n in range(9)), slot="slot")
        assert tell(worker, 0.4) is True
        news = wait_until(lambda: (pubsub.get_message(timeout=1) or {}).get("data"), 20, "news")
        assert news == b"0 slot"
        assert tell(worker, 0.4) is False
    assert 3_000_000 < client.pttl(key("slot:slot")) <= 3_600_000
    reply = ask(worker, 10)
    assert len(reply.leases) == 3  # at once, after 0.4 and after 0.8 s
    assert reply.turns[0][5] == 400_000


def test_the_longest_delay_of_a_group(
    tell: Callable[..., bool], worker: Worker, client: redis.Redis
) -> None:
    """Of several hosts in one slot the slowest counts; a host may change its mind."""
    assert [tell(worker, 2), tell(worker, 1, "b.example"), delay(client)] == [True, False, 2]
    assert [tell(worker, 3, "b.example"), delay(client)] == [True, 3]
    assert [tell(worker, 1, "b.example"), delay(client)] == [True, 1]
    assert [tell(worker, 0), delay(client)] == [False, 1]
    assert [tell(worker, 0, "b.example"), delay(client)] == [True, 0]
    assert client.exists(key("slot:slot")) == 0


# Crawls


JITTER = 0.12
"""Seconds by which a request may get from here to the site faster than the one before it, on a busy
machine; the starts themselves are exact."""

OBEY = {"ROBOTSTXT_OBEY": "True", "REDISQ_LEASE_TTL": 20, "RETRY_TIMES": 0}


def with_robots(robots: Callable[[], Answer], **page: Any) -> Callable[[str], Answer]:
    """Pages of a site whose robots.txt is what ``robots`` returns."""
    return lambda path: robots() if path == "/robots.txt" else Answer("x", **page)


def rules(*lines: str, **options: Any) -> Callable[[], Answer]:
    text = "\n".join(["User-agent: *", *lines])
    return lambda: Answer(text, content_type="text/plain", **options)


def robots_hits(site: Site) -> Counter[str]:
    """How often robots.txt of each host was asked for."""
    return Counter(hit.host for hit in site.hits if hit.path == "/robots.txt")


def total(workers: list[Crawl], stat: str) -> int:
    return sum(worker.stats.get(stat, 0) for worker in workers)


def test_once_for_all(crawl: Run) -> None:
    """Two workers fetch each host's robots.txt once, and both heed it, also the requests that had
    to wait for it together."""
    with Site(with_robots(rules("Disallow: /1", delay=0.5), delay=0.05), hosts=2) as site:
        workers = crawl.fleet(2, "hosts", None, OBEY, sites=site.urls(2), pages=20)
        finish(workers)
    assert len(robots_hits(site)) == 2
    assert set(robots_hits(site).values()) == {1}
    assert not [hit.path for hit in site.hits if hit.path.startswith("/1")]
    assert sum(map(len, site.starts().values())) == 2 * 9
    assert total(workers, "robotstxt/forbidden") == 2 * 11
    assert total(workers, "robotstxt/request_count") == 2
    assert total(workers, "robotstxt/response_status_count/200") == 2
    assert total(workers, "redisq/robots/shared") >= 1
    assert total(workers, "redisq/robots/crawl_delay") == 0


@pytest.mark.parametrize(
    ("settings", "most"),
    [({"REDISQ_CRAWL_DELAY_MAX": 0.3}, 0.3), ({"REDISQ_SCHEDULING": "priority"}, 0)],
)
def test_delays_are_cut(crawl: Run, settings: dict[str, Any], most: float) -> None:
    """To REDISQ_CRAWL_DELAY_MAX. Without slots there is none; texts are shared."""
    with Site(with_robots(rules("Crawl-delay: 86400", "Disallow: /1", delay=0.5))) as site:
        finish(crawl.fleet(2, "hosts", None, {**OBEY, **settings}, sites=site.url, pages=6))
    (times,) = site.starts().values()
    assert len(times) == 5
    assert sum(robots_hits(site).values()) == 1
    shortest = min(gaps(times))
    assert shortest >= most - JITTER if most else times[-1] - times[0] < 1


def test_a_host_that_is_left_alone_takes_no_place(crawl: Run) -> None:
    """A robots.txt that may be asked for again only in a minute does not wait as a download: the
    worker can do but one at a time, and fetches from the other host meanwhile."""

    def answer() -> Answer:
        if site.hits[-1].host.startswith("127.0.0.1:"):
            return Answer("later", status=503, headers={"Retry-After": "60"})
        return rules("Disallow: /1")()

    with Site(with_robots(answer), hosts=2) as site:
        settings = {**OBEY, "RETRY_TIMES": 2, "CONCURRENT_REQUESTS": 1}
        worker = crawl("hosts", None, settings, sites=site.urls(2), pages=5)
        wait_until(lambda: len(site.starts().get("127.0.0.2", ())) == 4, 25, "the other's pages")
        wait_until(lambda: robots_hits(site)[f"127.0.0.1:{site.port}"], 10, "both were asked for")
        worker.terminate().wait()
    assert site.starts().keys() == {"127.0.0.2"}
    assert set(robots_hits(site).values()) == {1}
    status = crawl.status("hosts")
    assert (status["queued"], status["dead"]) == (5, 0)


def test_a_host_in_trouble_is_closed(crawl: Run, tmp_path: Path) -> None:
    """While robots.txt is answered with 5xx nothing else is fetched from the host; its pages wait,
    others go on, and when it answers its rules are heeded."""
    asked: list[float] = []

    def answer() -> Answer:
        if not site.hits[-1].host.startswith("127.0.0.1:"):
            return rules()()
        asked.append(time.monotonic())
        return Answer("", status=500) if len(asked) <= 3 else rules("Disallow: /1")()

    with Site(with_robots(answer), hosts=2) as site:
        settings = {
            **OBEY,
            "RETRY_ENABLED": False,
            "HTTPCACHE_ENABLED": True,  # Scrapy's cache keeps any answer
            "HTTPCACHE_DIR": tmp_path / "cache",
            **constants({"scrapy_redisq.middlewares.robots.CLOSED_FOR": 0.5}),
        }
        finish(crawl.fleet(2, "hosts", None, settings, sites=site.urls(2), pages=5))
    at = site.starts()
    assert (len(at["127.0.0.1"]), len(at["127.0.0.2"])) == (4, 5)
    assert min(at["127.0.0.1"]) > asked[3]
    assert asked[3] - asked[0] >= 3 * 0.5 - 0.2
    assert crawl.status("hosts")["dead"] == 0


@pytest.mark.parametrize("scheduling", ["slot", "priority"])
def test_a_host_that_stays_in_trouble(crawl: Run, scheduling: str) -> None:
    """Its slot is set aside, and the crawl ends, and says so; without slots its pages become dead
    letters. None is fetched, and each robots.txt counts as one failure, however many pages it keeps
    waiting. That it leads elsewhere is no success."""

    def page(path: str) -> Answer:
        moved = Answer("", status=302, headers={"Location": "/moved.txt"})
        return moved if path == "/robots.txt" else Answer("", status=502)

    settings = {
        **OBEY,
        "REDISQ_SCHEDULING": scheduling,
        "REDISQ_SLOT_GIVE_UP": 2,
        "REDISQ_SET_ASIDE_WAIT": 0.5,
        "RETRY_ENABLED": False,
    }
    with Site(page) as site:
        worker = crawl("hosts", site, settings, sites=site.url, pages=5).wait()
    assert worker.reason == ("finished" if scheduling == "priority" else "slots_set_aside")
    assert ("scrapy redisq slots hosts" in worker.log) == (scheduling == "slot")
    assert set(site.counts()) == {"/robots.txt", "/moved.txt"}
    assert scheduling == "priority" or site.counts()["/robots.txt"] >= 2
    with crawl.frontier("hosts") as frontier:
        status = frontier.status()
        if scheduling == "slot":
            key = "redisq:{hosts:0}:slot:127.0.0.1"
            assert frontier.client.hget(key, "status") == b"-502"
            assert frontier.slot("127.0.0.1").status == 502
        assert (status["queued"], status["dead"]) == ((0, 5) if status["dead"] else (5, 0))
        assert (status["dead"] == 5) is (scheduling == "priority")


def test_no_answer(crawl: Run) -> None:
    """A robots.txt that never comes costs the fleet one DOWNLOAD_TIMEOUT; then all is allowed."""
    settings = {**OBEY, "DOWNLOAD_TIMEOUT": 2, "REDISQ_BACKOFF_CODES": "[]"}
    with Site(with_robots(rules("Disallow: /", delay=60))) as site:
        workers = crawl.fleet(2, "hosts", None, settings, sites=site.url, pages=6)
        assert [worker.wait().reason for worker in workers] == ["finished"] * 2
    assert site.counts() == {"/robots.txt": 1, **{f"/{n}": 1 for n in range(6)}}
    stats = [stat for worker in workers for stat in worker.stats]
    assert sum(stat.startswith("robotstxt/exception") for stat in stats) == 1
