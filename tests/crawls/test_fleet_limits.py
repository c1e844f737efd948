"""Scrapy's own limits and AutoThrottle, kept by the whole fleet."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from scrapy import Spider
from scrapy.core.downloader import Slot
from scrapy.crawler import Crawler
from scrapy.extensions.throttle import AutoThrottle
from scrapy.http import Request, Response
from scrapy.settings import Settings

from lab.servers import RedisServer
from lab.site import Answer, Site
from scrapy_redisq.errors import SettingError
from scrapy_redisq.frontier.limits import SlotLimit, Throttle
from scrapy_redisq.frontier.operations import DownloadResult
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.politeness.judge import Judge
from tests.harness.busy import Busy
from tests.harness.crawl import LATENESS, Run, finish, lateness
from tests.harness.worker import EXACT, NAME, Worker, ask

FLEET = {"REDISQ_FLEET_LIMITS": True}
THROTTLED = {"REDISQ_AUTOTHROTTLE": True}

# Settings


def limits(given: dict[str, Any], spider: object = None) -> dict[str, SlotLimit]:
    read = RedisqSettings.read(Settings(given), spider).limits()
    return {slot: SlotLimit.from_text(text) for slot, text in read.items()}


SCRAPYS: dict[str, Any] = {
    "DOWNLOAD_DELAY": "0.5",
    "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
    "DOWNLOAD_SLOTS": {
        "a.example": {"delay": 2, "randomize_delay": False},
        "b.example": {"concurrency": 1, "jitter": 0.1},
    },
}


def test_scrapys_limits() -> None:
    """Its settings are limits of the fleet if that is asked for, and else of each process."""
    assert limits(SCRAPYS) == {}
    assert limits({**SCRAPYS, **FLEET}) == {
        "*": SlotLimit(0.5, 4),
        "a.example": SlotLimit(2, 4),
        "b.example": SlotLimit(0.5, 1),
    }
    from_command_line = {**FLEET, "DOWNLOAD_SLOTS": '{"a": {"delay": 1}}'}
    assert limits(from_command_line) == {"a": SlotLimit(1)}


def test_own_settings_win() -> None:
    """REDISQ_SLOT_… come before Scrapy's, by slot too, and complete them."""
    own = {
        "REDISQ_SLOT_DELAY": 0,
        "REDISQ_SLOT_LIMITS": {
            "*": {"rate": "1/s"},
            "a.example": {"concurrency": 9},
            "b.example": {"concurrency": 2},
        },
    }
    assert limits({**SCRAPYS, **FLEET, **own}) == {
        "*": SlotLimit(0, 4, 1.0),
        "a.example": SlotLimit(2, 9, 1.0),
        "b.example": SlotLimit(0, 2, 1.0),
    }
    assert limits({**SCRAPYS, **FLEET, "REDISQ_SLOT_CONCURRENCY": 0})["*"] == SlotLimit(0.5)


def test_scrapys_default_concurrency_is_not_the_fleets() -> None:
    """Only one that the project or the spider has set."""
    assert limits(FLEET) == {}
    settings = Settings(FLEET)
    settings.set("CONCURRENT_REQUESTS_PER_DOMAIN", 8, "spider")
    assert RedisqSettings.read(settings).limits() == {"*": SlotLimit(0, 8).to_text()}
    assert RedisqSettings.read(dict(FLEET)).limits() == {}
    given = {**FLEET, "CONCURRENT_REQUESTS_PER_DOMAIN": 8}
    assert RedisqSettings.read(given).limits() == {"*": SlotLimit(0, 8).to_text()}


def test_attributes_of_the_spider() -> None:
    """They override Scrapy's settings, as they do in releases of Scrapy that heed them."""
    spider = SimpleNamespace(download_delay=3, max_concurrent_requests=2)
    assert limits(FLEET, spider) == {"*": SlotLimit(3, 2)}
    assert limits({}, spider) == {}
    with pytest.raises(SettingError, match="DOWNLOAD_DELAY"):
        limits(FLEET, SimpleNamespace(download_delay="long"))


@pytest.mark.parametrize(
    "options",
    [{"delay": -1}, {"delay": "long"}, {"concurrency": 0}, {"rate": "1/s"}, {"dealy": 1}, 5, None],
)
def test_wrong_download_slots_name_the_slot(options: Any) -> None:
    """The error names the setting, the slot, what was given and what it takes."""
    with pytest.raises(SettingError) as caught:
        limits({**FLEET, "DOWNLOAD_SLOTS": {"shop.example": options}})
    assert str(caught.value).startswith("DOWNLOAD_SLOTS")
    assert "for 'shop.example' 'delay' (seconds" in str(caught.value)
    assert repr(options) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DOWNLOAD_DELAY", -1),
        ("CONCURRENT_REQUESTS_PER_DOMAIN", 1.5),
        ("AUTOTHROTTLE_MAX_DELAY", float("inf")),
        ("AUTOTHROTTLE_TARGET_CONCURRENCY", 0),
        ("AUTOTHROTTLE_ENABLED", "maybe"),
    ],
)
def test_wrong_values(name: str, value: Any) -> None:
    """The error names Scrapy's setting and what it takes."""
    with pytest.raises(SettingError, match=f"^{name} = .*takes (seconds|a |True)"):
        limits({**THROTTLED, name: value})


def test_terms_of_autothrottle() -> None:
    """Scrapy's settings, in which the delay is the shortest."""
    assert RedisqSettings.read(Settings(THROTTLED)).throttle == Throttle(1, 5, 0, 60)
    given = {
        **THROTTLED,
        "DOWNLOAD_DELAY": 0.5,
        "AUTOTHROTTLE_START_DELAY": 0.1,
        "AUTOTHROTTLE_MAX_DELAY": 10,
        "AUTOTHROTTLE_TARGET_CONCURRENCY": "2.5",
    }
    read = RedisqSettings.read(Settings(given))
    assert read.throttle == Throttle(2.5, 0.5, 0.5, 10)
    assert read.throttle.to_text() == "2.5 500000 500000 10000000"
    assert limits(given) == {"*": SlotLimit(0.5)}
    assert RedisqSettings.read(Settings({})).throttle is None


@pytest.mark.parametrize("setting", ["REDISQ_FLEET_LIMITS", "REDISQ_AUTOTHROTTLE"])
def test_one_autothrottle_is_enough(setting: str) -> None:
    """Scrapy's own would change the delays of each process by itself."""
    with pytest.raises(SettingError, match=f"AUTOTHROTTLE_ENABLED = True: takes False.*{setting}"):
        limits({setting: True, "AUTOTHROTTLE_ENABLED": True})


@pytest.mark.parametrize("given", [THROTTLED, {**FLEET, "DOWNLOAD_DELAY": 1}])
def test_they_need_slots(given: dict[str, Any]) -> None:
    """With strict priority over the whole frontier there are none."""
    with pytest.raises(SettingError, match=r"REDISQ_SCHEDULING.*limits of slots"):
        RedisqSettings.read(Settings({**given, "REDISQ_SCHEDULING": "priority"}))


def test_a_request_can_be_left_out() -> None:
    """By ``autothrottle_dont_adjust_delay``, as in Scrapy: its latency is not told."""
    judge = Judge([503], ())

    def latency(**meta: Any) -> float | None:
        request = Request("http://a.example/", meta={"download_latency": 0.2, **meta})
        outcome = judge.judge("a.example", request, Response(request.url), 0.0)
        assert outcome is not None
        return outcome.latency

    assert latency() == 0.2
    assert latency(autothrottle_dont_adjust_delay=False) == 0.2
    assert latency(autothrottle_dont_adjust_delay=True) is None


# Protocol


@pytest.fixture
def member(client: redis.Redis) -> Callable[..., Worker]:
    """Makes workers of the frontier "books" with these terms of AutoThrottle."""

    def make(throttle: Throttle | None) -> Worker:
        text = throttle.to_text() if throttle else ""
        return Worker(client, NAME, EXACT, limits={}, throttle=text)

    return make


def answered(worker: Worker, latency: float | None, status: int = 200) -> None:
    """Hand in an answer that has come just now."""
    outcome = DownloadResult("host", status, time.monotonic(), failed=None, latency=latency)
    worker.sessions[0].outgoing.download_results.append(outcome)


def delay(client: redis.Redis) -> float | None:
    """Seconds that latencies have come to, None if nothing is known."""
    found = client.hget(f"redisq:{{{NAME}:0}}:slot:host", "throttle")
    return None if found is None else int(found) / 1e6


@pytest.mark.parametrize(
    "terms", [Throttle(2, 1, 0, 60), Throttle(0.5, 5, 0.2, 1.5), Throttle(16, 0.3, 0.01, 60)]
)
def test_delays_are_those_of_scrapys_autothrottle(
    member: Callable[..., Worker], client: redis.Redis, terms: Throttle
) -> None:
    """After any latencies and statuses, reported by several workers, one by one or together."""
    given = {
        "AUTOTHROTTLE_ENABLED": True,
        "AUTOTHROTTLE_TARGET_CONCURRENCY": terms.target,
    }
    scrapys = AutoThrottle(Crawler(Spider, Settings(given)))
    scrapys.mindelay, scrapys.maxdelay = terms.least, terms.most
    slot = Slot(8, terms.start, 0.0)
    workers = [member(terms), member(terms)]
    randomly = random.Random(6)
    for number in range(150):
        latency = round(randomly.lognormvariate(-1, 1.5), 6)
        status = randomly.choice([200, 200, 200, 404, 301, 503])
        worker = workers[number % 2]
        answered(worker, latency, status)
        scrapys._adjust_delay(slot, latency, Response("http://host", status=status))
        if randomly.random() < 0.3:
            answered(worker, None)
            answered(worker, latency)
            scrapys._adjust_delay(slot, latency, Response("http://host"))
        ask(worker, 0)
        assert delay(client) == pytest.approx(slot.delay, abs=3e-6)


# Crawls


JITTER = 0.005
"""Seconds that may lie between a worker's start of a request and its look at the clock."""


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_scrapys_limits_of_the_fleet(crawl: Run, redis_server: RedisServer) -> None:
    """Three workers keep DOWNLOAD_DELAY and DOWNLOAD_SLOTS together; no process holds a request
    back a second time, or one of a slot that is to have no delay."""
    given = {
        **FLEET,
        **LATENESS,
        "DOWNLOAD_DELAY": 0.25,
        "DOWNLOAD_SLOTS": json.dumps({"127.0.0.2": {"concurrency": 1, "delay": 0}}),
        "REDISQ_SLOT_LIMITS": json.dumps({"127.0.0.3": {"delay": 0}}),
    }
    with Site(lambda path: Answer("x", delay=0.1), hosts=3) as site:
        workers = crawl.fleet(3, "hosts", None, given, sites=site.urls(3), pages=16)
        busy = Busy(redis_server)
        finish(workers)
        lost = busy.took(workers)
    at = site.starts(16)
    assert min(gaps(at["127.0.0.1"])) >= 0.25 - JITTER
    assert at["127.0.0.1"][-1] - at["127.0.0.1"][0] < 15 * 0.25 * 1.6 + lost
    assert min(gaps(at["127.0.0.2"])) >= 0.1 - 0.005
    # Scrapy's delay would leave at least 0.125 s between a worker's starts.
    pairs = zip(at["127.0.0.3"], at["127.0.0.3"][3:], strict=False)
    four = min(fourth - first for first, fourth in pairs)
    assert four < 0.125, "three workers that do not wait start four requests at once"


def test_more_at_a_time_than_scrapy_allows(crawl: Run) -> None:
    """A single worker may reach the fleet's concurrency, whatever Scrapy's is for a process."""
    given = {**FLEET, "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "REDISQ_SLOT_CONCURRENCY": 8}
    all_eight = [threading.Event()]

    def page(path: str) -> Answer:
        # The first one is alone; of the others none is answered before eight were asked for.
        number = len(site.hits) - 1
        if number % 8 == 0:
            all_eight[-1].set()
            all_eight.append(threading.Event())
        return Answer("x", delay=0.2, until=all_eight[(number + 7) // 8])

    with Site(page) as site:
        worker = crawl("hosts", None, given, sites=site.urls(1), pages=25)
        assert worker.wait().reason == "finished"
    assert len(site.hits) == 25
    at_a_time = [sum(other.at <= hit.at < other.ended for other in site.hits) for hit in site.hits]
    assert max(at_a_time) == 8


def test_autothrottle_of_the_fleet(crawl: Run) -> None:
    """Three workers have together as many requests in progress at a site as is aimed at."""
    given = {
        **THROTTLED,
        **LATENESS,
        "AUTOTHROTTLE_START_DELAY": 0.3,
        "AUTOTHROTTLE_TARGET_CONCURRENCY": 2,
    }
    with Site(lambda path: Answer("x", delay=0.2)) as site:
        workers = crawl.fleet(3, "hosts", None, given, sites=site.urls(1), pages=50)
        finish(workers)
    (times,) = site.starts(50).values()
    settled = times[15:]
    took, work = settled[-1] - settled[0], 0.2 * (len(settled) - 1)
    assert work / took <= 2.05
    assert took <= work / (0.6 * 2) + lateness(workers)
