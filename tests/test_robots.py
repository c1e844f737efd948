"""robots.txt: fetched once for the fleet, heeded by all of it, with its Crawl-delay."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest
import redis
from scrapy.http import Response
from scrapy.robotstxt import ProtegoRobotParser, PythonRobotParser
from scrapy.settings import Settings

from scrapy_redisq import Addon, RedisqRobotsTxtMiddleware
from scrapy_redisq._scrapy import asked_delays
from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier import Frontier, calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.robots import DAY, ERROR_VALID, HOUR, slowest, valid_for
from scrapy_redisq.settings import RedisqSettings
from tests.harness.crawl import Crawl, Run
from tests.harness.proxy import Proxy
from tests.harness.servers import RedisServer, wait_until
from tests.harness.site import Answer, Site
from tests.harness.worker import Worker

NAME = "books"
EXACT = FrontierConfig(dupefilter="exact", backend="exact", spider="books")
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
        ("Crawl-delay: 0", 0),
        ("Crawl-delay: inf", 0),
        ("Crawl-delay: nan", 0),
        ("Crawl-delay: soon", 0),
        ("Crawl-delay:", 0),
        ("Request-rate: 0/5", 0),
        ("Request-rate: often", 0),
        ("Request-rate: 1/0", 0),
        ("Disallow: /x", 0),
    ],
)
def test_delays(parser: Any, lines: str, delay: float) -> None:
    """The slower of Crawl-delay and Request-rate; what makes no sense asks for nothing."""
    text = f"User-agent: *\nDisallow: /private\n{lines}\n"
    assert slowest(asked_delays(parser(text.encode(), None), "anybody")) == delay


def test_delay_of_the_agent() -> None:
    """It is that of the group which is for the crawler."""
    parser = ProtegoRobotParser(
        b"User-agent: *\nCrawl-delay: 9\n\nUser-agent: bookbot\nCrawl-delay: 2\n", None
    )
    assert slowest(asked_delays(parser, "bookbot/1.0 (+https://a.example)")) == 2
    assert slowest(asked_delays(parser, "other")) == 9


def test_parsers_of_others() -> None:
    """A parser that knows no delays asks for none."""
    assert slowest(asked_delays(object(), "anybody")) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (200, {}, DAY),
        (404, {}, DAY),
        (200, {"Cache-Control": "public, max-age=7200"}, 7_200),
        (200, {"Cache-Control": "max-age=7200", "Expires": "0"}, 7_200),
        (200, {"Cache-Control": "no-store, max-age=0"}, HOUR),
        (200, {"Cache-Control": "max-age=99999999999999999"}, DAY),
        (
            200,
            {"Expires": formatdate(9_000, usegmt=True), "Date": formatdate(0, usegmt=True)},
            9_000,
        ),
        (200, {"Expires": "0"}, DAY),
        (503, {"Cache-Control": "max-age=7200"}, ERROR_VALID),
        (429, {}, ERROR_VALID),
    ],
)
def test_how_long_it_is_valid(status: int, headers: dict[str, str], seconds: float) -> None:
    """As the server says, from an hour to a day (RFC 9309, 2.4); shorter if it is in trouble."""
    response = Response("http://a.example/robots.txt", status=status, headers=headers)
    assert valid_for(response) == seconds


class TestAddon:
    OWN = "scrapy_redisq.RedisqRobotsTxtMiddleware"
    SCRAPYS = "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware"

    def middlewares(self, chosen: dict[Any, Any]) -> dict[Any, Any]:
        settings = Settings({"DOWNLOADER_MIDDLEWARES": chosen}, priority="project")
        Addon().update_settings(settings)
        merged = settings.getwithbase("DOWNLOADER_MIDDLEWARES")
        return {name: merged.get(name) for name in merged if "obots" in str(name)}

    def test_in_the_place_of_scrapys(self) -> None:
        """Scrapy's is off, this one stands at its number."""
        assert self.middlewares({}) == {self.OWN: 100, self.SCRAPYS: None}

    @pytest.mark.parametrize("place", [None, 120])
    def test_the_project_decides(self, place: int | None) -> None:
        """A project that has said something about robots.txt middlewares keeps that."""
        assert self.middlewares({self.SCRAPYS: place}) == {self.SCRAPYS: place}
        assert self.middlewares({RedisqRobotsTxtMiddleware: place})[self.SCRAPYS] == 100


@pytest.mark.parametrize("most", [-1, "long", True])
def test_wrong_setting(most: Any) -> None:
    """REDISQ_CRAWL_DELAY_MAX takes seconds."""
    with pytest.raises(SettingError, match="REDISQ_CRAWL_DELAY_MAX"):
        RedisqSettings.read(Settings({"REDISQ_CRAWL_DELAY_MAX": most}))


# Protocol


@pytest.fixture
def client(each_server: RedisServer) -> Iterator[redis.Redis]:
    with each_server.client() as client:
        yield client


@pytest.fixture
def worker(client: redis.Redis) -> Worker:
    return Worker(client, NAME, EXACT)


def key(name: str) -> str:
    return calls.prefix(NAME, 0) + name


@pytest.fixture
def robots(client: redis.Redis, worker: Worker) -> Callable[..., tuple[str, bytes, float]]:
    def run(token: str, host: str = HOST, **options: Any) -> tuple[str, bytes, float]:
        return execute(client, calls.robots(NAME, 0, worker.joined.run, host, token, **options))

    return run


def test_one_fetches_the_others_wait(robots: Callable[..., Any]) -> None:
    """Until the text is there, which is then for all."""
    assert [robots("a")[0], robots("b")[0], robots("a")[0]] == ["fetch", "wait", "fetch"]
    robots("a", text=b"\x00text\xff", ttl=60)
    what, text, valid = robots("b")
    assert (what, text) == ("known", b"\x00text\xff")
    assert 59 < valid <= 60
    assert robots("b", host="b.example")[0] == "fetch"


def test_an_empty_text_is_one(robots: Callable[..., Any]) -> None:
    """Of a host without robots.txt."""
    robots("a", text=b"", ttl=60)
    assert robots("b")[:2] == ("known", b"")


def test_who_fetches_may_change(robots: Callable[..., Any], client: redis.Redis) -> None:
    """Another one takes over when the first has died, gives up, or cannot go on."""
    robots("a")
    assert client.zscore(key("robots_until"), HOST) < 1e6 * (client.time()[0] + 7)
    client.zadd(key("robots_until"), {HOST: 1})
    assert robots("b")[0] == "fetch"
    assert robots("a")[0] == "wait"
    robots("a", give_up=True)
    assert robots("a")[0] == "wait"
    robots("b", give_up=True)
    assert robots("a")[0] == "fetch"
    assert robots("b", take=True)[0] == "fetch"
    assert robots("a")[0] == "wait"


def test_texts_expire(robots: Callable[..., Any], client: redis.Redis) -> None:
    """An old one is fetched anew; those that nobody asks for make room."""
    robots("a", text=b"old", ttl=60)
    robots("a", host="other", text=b"old", ttl=60)
    client.zadd(key("robots_until"), {HOST: 1, "other": 1})
    assert robots("b")[0] == "fetch"
    robots("b", text=b"new", ttl=60)
    assert robots("a")[:2] == ("known", b"new")
    assert client.hkeys(key("robots")) == [HOST.encode()]
    assert client.zcard(key("robots_until")) == 1


def test_a_new_run_knows_nothing(
    robots: Callable[..., Any], worker: Worker, client: redis.Redis
) -> None:
    """Who is still in the old one is told so, and leaves no trace."""
    robots("a", text=b"old", ttl=60)
    worker.exchange_all()
    worker.leave()
    new = Worker(client, NAME, EXACT)
    assert new.joined.began
    assert robots("a")[0] == "lost"
    assert robots("a", text=b"late", ttl=60)[0] == "lost"
    assert client.exists(key("robots"), key("robots_until")) == 0


def test_reset_leaves_nothing(redis_server: RedisServer) -> None:
    """Texts go with the rest of the frontier."""
    with redis_server.client() as client, Frontier.from_url(redis_server.url, NAME) as frontier:
        worker = Worker(client, NAME, EXACT)
        execute(client, calls.robots(NAME, 0, worker.joined.run, HOST, "a", text=b"x", ttl=60))
        worker.exchange_all()
        worker.leave()
        frontier.reset()
        assert client.keys("*") == []


@pytest.fixture
def tell(client: redis.Redis) -> Callable[..., bool]:
    def run(worker: Worker, delay: float, host: str = HOST) -> bool:
        return execute(
            client, calls.crawl_delay(NAME, 0, worker.joined.run, host, "slot", delay, 3_600)
        )

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
        news = wait_until(lambda: (pubsub.get_message(timeout=1) or {}).get("data"), 5, "news")
        assert news == b"0 slot"
        assert tell(worker, 0.4) is False
    assert 3_000_000 < client.pttl(key("slot:slot")) <= 3_600_000
    reply = worker.exchange(10)
    assert reply is not None
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


def test_delay_of_a_former_run(
    tell: Callable[..., bool], worker: Worker, client: redis.Redis
) -> None:
    """What a host said in the run before does not count any more."""
    tell(worker, 9)
    worker.exchange_all()
    worker.leave()
    new = Worker(client, NAME, EXACT)
    assert tell(worker, 20) is False
    assert delay(client) == 9
    assert tell(new, 1) is True
    assert delay(client) == 1


# Crawls


JITTER = 0.06
"""As in test_limits.py."""

OBEY = {"ROBOTSTXT_OBEY": "True", "REDISQ_LEASE_TTL": 2, "RETRY_TIMES": 0}


def with_robots(robots: Callable[[], Answer], **page: Any) -> Callable[[str], Answer]:
    """Pages of a site whose robots.txt is what ``robots`` returns."""
    return lambda path: robots() if path == "/robots.txt" else Answer("x", **page)


def rules(*lines: str, **options: Any) -> Callable[[], Answer]:
    text = "\n".join(["User-agent: *", *lines])
    return lambda: Answer(text, content_type="text/plain", **options)


def hosts(site: Site, number: int) -> str:
    return " ".join(f"http://127.0.0.{n}:{site.port}" for n in range(1, number + 1))


def pages(site: Site) -> dict[str, list[float]]:
    """When pages of each host were asked for."""
    at = defaultdict(list)
    for hit in site.hits:
        if hit.path != "/robots.txt":
            at[hit.host].append(hit.at)
    return {host: sorted(times) for host, times in at.items()}


def robots_hits(site: Site) -> Counter[str]:
    """How often robots.txt of each host was asked for."""
    return Counter(hit.host for hit in site.hits if hit.path == "/robots.txt")


def total(workers: list[Crawl], stat: str) -> int:
    return sum(worker.stats.get(stat, 0) for worker in workers)


def fleet(
    crawl: Run,
    site: Site,
    number: int,
    settings: dict[str, Any] | None = None,
    n_hosts: int = 4,
    **arguments: Any,
) -> list[Crawl]:
    given = {**OBEY, **(settings or {})}
    return [
        crawl("hosts", None, given, sites=hosts(site, n_hosts), **arguments) for _ in range(number)
    ]


def test_once_for_all(crawl: Run) -> None:
    """Three workers fetch each host's robots.txt once, and all of them heed it, also the requests
    that had to wait for it together."""
    with Site(with_robots(rules("Disallow: /1", delay=0.5), delay=0.05), hosts=4) as site:
        workers = fleet(crawl, site, 3, pages=30)
        for worker in workers:
            assert worker.wait().reason == "finished"
            assert "Traceback" not in worker.log
    assert len(robots_hits(site)) == 4
    assert set(robots_hits(site).values()) == {1}
    assert not [hit.path for hit in site.hits if hit.path.startswith("/1")]
    assert sum(map(len, pages(site).values())) == 4 * 19
    assert total(workers, "robotstxt/forbidden") == 4 * 11
    assert total(workers, "robotstxt/request_count") == 4
    assert total(workers, "robotstxt/response_status_count/200") == 4
    assert total(workers, "redisq/robots/shared") >= 1
    assert total(workers, "redisq/robots/crawl_delay") == 0


@pytest.mark.parametrize("line", ["Crawl-delay: 0.25", "Request-rate: 4/1"])
def test_delay_of_the_fleet(crawl: Run, line: str) -> None:
    """Three workers keep each host's delay together from the first page on."""
    with Site(with_robots(rules(line, delay=0.2)), hosts=4) as site:
        workers = fleet(crawl, site, 3, pages=12)
        for worker in workers:
            assert worker.wait().reason == "finished"
            assert "Traceback" not in worker.log
    assert set(robots_hits(site).values()) == {1}
    for times in pages(site).values():
        assert len(times) == 12
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert min(gaps) >= 0.25 - JITTER
        assert times[-1] - times[0] < 11 * 0.25 * 1.5
    assert total(workers, "redisq/robots/crawl_delay") >= 4
