"""Settings of limits; Scrapy's own limits and AutoThrottle, kept by the whole fleet."""

from __future__ import annotations

import json
import random
import threading
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
from scrapy_redisq.frontier.limits import SlotLimit, Throttle, limit_of, parse_rate
from scrapy_redisq.settings.settings import RedisqSettings
from scrapy_redisq.worker.politeness.judge import Judge
from tests.harness.crawl import (
    JITTER,
    LATENESS,
    Busy,
    Run,
    finish,
    gaps,
    lateness,
    wait_until_joined,
)
from tests.harness.worker import NAME, Make, ask, downloaded

FLEET = {"REDISQ_FLEET_LIMITS": True}
THROTTLED = {"REDISQ_AUTOTHROTTLE": True}

PER_DOMAIN = "CONCURRENT_REQUESTS_PER_DOMAIN"

# Settings

SCRAPYS: dict[str, Any] = {
    **FLEET,
    "DOWNLOAD_DELAY": "0.5",
    PER_DOMAIN: 4,
    "DOWNLOAD_SLOTS": {
        "a.example": {"delay": 2, "randomize_delay": False},
        "b.example": {"concurrency": 1, "jitter": 0.1},
    },
}
OWN = {"*": {"rate": "1/s"}, "a.example": {"concurrency": 9}, "b.example": {"concurrency": 2}}


def limits(given: dict[str, Any], spider: object = None) -> dict[str, SlotLimit]:
    read = RedisqSettings.read(Settings(given), spider).limits()
    return {slot: SlotLimit.from_text(text) for slot, text in read.items()}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({**SCRAPYS, "REDISQ_FLEET_LIMITS": False}, {}),
        (SCRAPYS, {"*": (0.5, 4), "a.example": (2, 4), "b.example": (0.5, 1)}),
        ({**FLEET, "DOWNLOAD_SLOTS": '{"a": {"delay": 1}}'}, {"a": (1,)}),
        (
            {**SCRAPYS, "REDISQ_SLOT_DELAY": 0, "REDISQ_SLOT_LIMITS": OWN},
            {"*": (0, 4, 1.0), "a.example": (2, 9, 1.0), "b.example": (0, 2, 1.0)},
        ),
        ({**FLEET, PER_DOMAIN: 8, "REDISQ_SLOT_CONCURRENCY": 0}, {}),
        ({**THROTTLED, "DOWNLOAD_DELAY": 0.5}, {"*": (0.5,)}),
        (FLEET, {}),  # Scrapy's default concurrency is not the fleet's
        (
            {
                "REDISQ_SLOT_DELAY": 2,
                "REDISQ_SLOT_LIMITS": {
                    "*": {"rate": "30/m"},
                    "a.example": {"delay": 0},
                    "*.b.example": {"concurrency": 3},
                },
            },
            {"a.example": (0, 0, 0.5), "*.b.example": (2, 3, 0.5), "*": (2, 0, 0.5)},
        ),
        ({"REDISQ_SLOT_LIMITS": '{"a": {"rate": "1/s"}}'}, {"a": (0, 0, 1.0)}),
        ({}, {}),
    ],
)
def test_limits(given: dict[str, Any], expected: dict[str, tuple[float, ...]]) -> None:
    """What a slot's limit leaves out is as for all. Scrapy's that the project has set are limits of
    the fleet if that is asked for: REDISQ_SLOT_… come before them, and complete them."""
    assert limits(given) == {slot: SlotLimit(*one) for slot, one in expected.items()}


def test_the_limit_of_a_slot() -> None:
    """The one that says most, as scripts find it."""
    texts = {"*": "5 0 1 0", "*.b.example": "4 0 1 0", "a.b.example": "3 0 1 0", "x": "2 0 1 0"}
    slots = ("a.b.example", "c.b.example", "d.c.b.example", "b.example", "x", "y")
    found = [round(limit_of(texts, slot).delay * 1e6) for slot in slots]
    assert found == [3, 4, 4, 5, 2, 5]
    assert limit_of({}, "x") == SlotLimit()


def test_limits_of_the_spider() -> None:
    """They override the project's, also its attributes, as in releases of Scrapy that heed them."""
    spider = SimpleNamespace(download_delay=3, max_concurrent_requests=2)
    assert limits(FLEET, spider) == {"*": SlotLimit(3, 2)}
    assert limits({}, spider) == {}
    with pytest.raises(SettingError, match="DOWNLOAD_DELAY"):
        limits(FLEET, SimpleNamespace(download_delay="long"))
    settings = Settings(FLEET)
    settings.set(PER_DOMAIN, 8, "spider")
    assert RedisqSettings.read(settings).limits() == {"*": SlotLimit(0, 8).to_text()}


BY_PRIORITY = {"REDISQ_SCHEDULING": "priority"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({**THROTTLED, "DOWNLOAD_DELAY": -1}, "^DOWNLOAD_DELAY = .*takes seconds"),
        ({**THROTTLED, PER_DOMAIN: 1.5}, f"^{PER_DOMAIN} = .*takes a "),
        (
            {**THROTTLED, "AUTOTHROTTLE_MAX_DELAY": float("inf")},
            "^AUTOTHROTTLE_MAX_DELAY = .*takes seconds",
        ),
        (
            {**THROTTLED, "AUTOTHROTTLE_TARGET_CONCURRENCY": 0},
            "^AUTOTHROTTLE_TARGET_CONCURRENCY = .*takes a ",
        ),
        ({**THROTTLED, "AUTOTHROTTLE_ENABLED": "maybe"}, "^AUTOTHROTTLE_ENABLED = .*takes True"),
        # Scrapy's own would change the delays of each process by itself.
        ({**FLEET, "AUTOTHROTTLE_ENABLED": True}, "True: takes False.*REDISQ_FLEET_LIMITS"),
        ({**THROTTLED, "AUTOTHROTTLE_ENABLED": True}, "True: takes False.*REDISQ_AUTOTHROTTLE"),
        ({**THROTTLED, **BY_PRIORITY}, r"REDISQ_SCHEDULING.*limits of slots"),
        ({**SCRAPYS, **BY_PRIORITY}, r"REDISQ_SCHEDULING.*limits of slots"),
        ({"REDISQ_SLOT_DELAY": 1, **BY_PRIORITY}, r"REDISQ_SCHEDULING.*limits of slots"),
    ],
)
def test_wrong_settings(given: dict[str, Any], says: str) -> None:
    """The error names the setting and what it takes."""
    with pytest.raises(SettingError, match=says):
        limits(given)


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
    assert RedisqSettings.read(Settings({})).throttle is None


def test_rates() -> None:
    """A rate is a number of requests in a second, minute, hour or day."""
    rates = {"30/m": 0.5, "10/s": 10, " 7 / h ": 7 / 3600, "2.5/s": 2.5, "1/d": 1 / 86_400, "": 0}
    assert {rate: parse_rate(rate) for rate in rates} == pytest.approx(rates)


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        *(
            (setting, options)
            for setting in ("DOWNLOAD_SLOTS", "REDISQ_SLOT_LIMITS")
            for options in ({"delay": -1}, {"delay": "long"}, {"dealy": 1}, 5, None)
        ),
        ("DOWNLOAD_SLOTS", {"concurrency": 0}),
        ("DOWNLOAD_SLOTS", {"rate": "1/s"}),
        *(
            ("REDISQ_SLOT_LIMITS", {"rate": rate})
            for rate in ("30", "m", "30/w", "-1/s", "0/s", "1e3/s", 30, True, "9999999/s")
        ),
        ("REDISQ_SLOT_LIMITS", {"concurrency": 1.5}),
        ("REDISQ_SLOT_LIMITS", {"burst": 0}),
        ("REDISQ_SLOT_LIMITS", {"budget": 0.5}),
        ("REDISQ_SLOT_LIMITS", {"budget": float("inf")}),
    ],
)
def test_wrong_limits_name_the_slot(setting: str, options: Any) -> None:
    """The error names the setting, the slot, what was given and what it takes."""
    with pytest.raises(SettingError) as caught:
        limits({**FLEET, setting: {"shop.example": options}})
    for told in (setting, "for 'shop.example' 'delay' (seconds", repr(options)):
        assert told in str(caught.value)


@pytest.mark.parametrize("slot", ["", "*.", "a*b", "*a", "two words", "https://a.example", 7])
def test_wrong_slots(slot: Any) -> None:
    """A slot is a name, or all below a domain."""
    with pytest.raises(SettingError, match="REDISQ_SLOT_LIMITS"):
        RedisqSettings.read(Settings({"REDISQ_SLOT_LIMITS": {slot: {"delay": 1}}}))


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


def delay(client: redis.Redis) -> float | None:
    """Seconds that latencies have come to, None if nothing is known."""
    found = client.hget(f"redisq:{{{NAME}:0}}:slot:host", "throttle")
    return None if found is None else int(found) / 1e6


@pytest.mark.parametrize(
    "terms", [Throttle(2, 1, 0, 60), Throttle(0.5, 5, 0.2, 1.5), Throttle(16, 0.3, 0.01, 60)]
)
def test_delays_are_those_of_scrapys_autothrottle(
    member: Make, client: redis.Redis, terms: Throttle
) -> None:
    """After any latencies and statuses, reported by several workers, one by one or together."""
    given = {"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_TARGET_CONCURRENCY": terms.target}
    scrapys = AutoThrottle(Crawler(Spider, Settings(given)))
    scrapys.mindelay, scrapys.maxdelay = terms.least, terms.most
    slot = Slot(8, terms.start, 0.0)
    workers = [member(throttle=terms.to_text()) for _ in range(2)]
    randomly = random.Random(6)
    for number in range(150):
        latency = round(randomly.lognormvariate(-1, 1.5), 6)
        status = randomly.choice([200, 200, 200, 404, 301, 503])
        worker = workers[number % 2]
        downloaded(worker, None, status=status, latency=latency)
        scrapys._adjust_delay(slot, latency, Response("http://host", status=status))
        if randomly.random() < 0.3:
            downloaded(worker, None, status=200)
            downloaded(worker, None, status=200, latency=latency)
            scrapys._adjust_delay(slot, latency, Response("http://host"))
        ask(worker, 0)
        assert delay(client) == pytest.approx(slot.delay, abs=3e-6)


# Crawls


def test_scrapys_limits_of_the_fleet(crawl: Run, redis_server: RedisServer) -> None:
    """DOWNLOAD_DELAY and DOWNLOAD_SLOTS are kept; Scrapy holds no request back a second time, or
    one of a slot that is to have no delay."""
    given = {
        **FLEET,
        **LATENESS,
        "DOWNLOAD_DELAY": 0.25,
        "DOWNLOAD_SLOTS": json.dumps({"127.0.0.2": {"concurrency": 1, "delay": 0}}),
        "REDISQ_SLOT_LIMITS": json.dumps({"127.0.0.3": {"delay": 0}}),
    }
    with Site(lambda path: Answer("x", delay=0.1), hosts=3) as site:
        worker = crawl("hosts", None, given, sites=site.urls(3), pages=8)
        busy = Busy(redis_server)
        finish([worker])
        lost = busy.took([worker])
    at = site.starts(8)
    assert min(gaps(at["127.0.0.1"])) >= 0.25 - JITTER
    assert at["127.0.0.1"][-1] - at["127.0.0.1"][0] < 7 * 0.25 * 1.6 + lost
    assert min(gaps(at["127.0.0.2"])) >= 0.1 - JITTER
    assert min(gaps(at["127.0.0.3"])) < 0.125, "Scrapy's delay would leave as much at least"


def test_beside_a_worker_without_them(crawl: Run) -> None:
    """It joins last, and so takes the limits away: then Scrapy's own hold in each process. One
    request may be at the gate just then."""
    given = {**LATENESS, "DOWNLOAD_DELAY": 0.25, "RANDOMIZE_DOWNLOAD_DELAY": False}
    with Site(lambda path: Answer("x")) as site:
        urls, fleet = site.urls(1), {**FLEET, "USER_AGENT": "fleet"}
        workers = [crawl("hosts", None, {**given, **fleet}, sites=urls, pages=16)]
        wait_until_joined(workers)
        workers.append(crawl("hosts", None, given, sites=urls, pages=16))
        finish(workers)
    at = [hit.at for hit in site.hits if hit.agent == "fleet"]
    assert len(at) > 4
    assert sorted(gaps(at))[1] >= 0.25 / 2, "Scrapy counts from when it wanted to start"


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
    """Two workers have together as many requests in progress at a site as is aimed at."""
    given = {
        **THROTTLED,
        **LATENESS,
        "AUTOTHROTTLE_START_DELAY": 0.3,
        "AUTOTHROTTLE_TARGET_CONCURRENCY": 2,
    }
    with Site(lambda path: Answer("x", delay=0.2)) as site:
        workers = crawl.fleet(2, "hosts", None, given, sites=site.urls(1), pages=35)
        finish(workers)
    (times,) = site.starts(35).values()
    settled = times[15:]
    took, work = settled[-1] - settled[0], 0.2 * (len(settled) - 1)
    assert work / took <= 2.05
    assert took <= work / (0.6 * 2) + lateness(workers)
