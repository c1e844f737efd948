"""Limits that several crawls keep together (REDISQ_LIMITS_NAME): protocol, and a crawl."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from scrapy.settings import Settings

from lab.servers import RedisServer, wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import ConfigurationMismatch, SettingError
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.limits import parse_limit
from scrapy_redisq.frontier.names import limits_channel
from scrapy_redisq.frontier.operations import TurnReport
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.settings.settings import RedisqSettings
from tests.harness.worker import EXACT, Make, Worker, ask, downloaded

SLOT = "redisq:limits:{both}:slot:host"


def report(tokens: int = 0, **more: int) -> list[TurnReport]:
    since, done, want = more.get("since", -1), more.get("done", 0), more.get("want", 1)
    return [TurnReport("host", since, 0, tokens, done, want)]


@pytest.fixture
def member(client: redis.Redis) -> Make:
    """Makes workers of different crawls, each with requests of one host."""

    def make(name: str, limits_name: str = "both", **options: Any) -> Worker:
        given = {key: options.pop(key) for key in ("delay", "concurrency") if key in options}
        texts = {"*": parse_limit(given).to_text()} if given else {}
        config = replace(EXACT, limits_name=limits_name)
        number = options.pop("requests", 90)
        worker = Worker(client, name, config, limits=texts, **options)
        worker.send(f"/{n}" for n in range(number))
        return worker

    return make


def test_a_delay_of_two_crawls(member: Make) -> None:
    """A turn passes between workers of both, with the last start, though each has as many requests
    as it likes and the one that waits holds none. Two workers of one crawl, that pass it to each
    other, keep nobody out, nor do two crawls a third one."""
    workers = [member(name, delay=0.1) for name in "aabc"]
    started: dict[Worker, float] = {}
    order: list[Worker] = []
    deadline = time.monotonic() + 12
    while len({worker.name for worker in order}) < 3:
        assert time.monotonic() < deadline, order
        for worker in workers:
            since = int((time.monotonic() - started[worker]) * 1e6) if worker in started else -1
            asked = time.monotonic()
            told = report(since=since, done=int(worker.name == "a"))
            is_owner = order and order[-1] is worker
            for grant in ask(worker, 1, told if is_owner else ()).turns:
                if grant.left <= 0 or grant.is_refused:
                    continue
                if grant.is_new and order:
                    # The start of the former owner is known, or the worst of it.
                    passed = time.monotonic() - started[order[-1]]
                    assert grant.next_start / 1e6 >= 0.1 - passed - 0.01
                if grant.is_new:
                    order.append(worker)
                started[worker] = asked


def test_a_crawl_with_stricter_limits(member: Make, client: redis.Redis) -> None:
    """Keeps the host from no other crawl while it may start nothing itself. That may be the end of
    it, or somebody may have given the host a shorter delay since."""
    strict, lax = member("strict", delay=600), member("lax", delay=0.1)
    assert ask(lax, 1).turns
    ask(lax, 0, report(since=0, done=1))

    def waits() -> bool:
        assert ask(strict, 1).turns == []
        return float(client.hget(SLOT, "place") or 0) > (time.time() + 500) * 1e6

    wait_until(waits, 20, "it is the first, and waits for its delay")
    for _ in range(2):
        wait_until(lambda: ask(lax, 1).turns, 20, "a turn")
        ask(lax, 0, report(since=0, done=1))
    assert (client.hget(SLOT, "line") or b"").startswith(b"{strict:0}")


def test_tokens_of_two_crawls(member: Make, client: redis.Redis) -> None:
    """All workers of both have no more than allowed. When another crawl has waited for two seconds,
    tokens go to it as downloads end."""
    first, second = member("a", concurrency=2), member("b", concurrency=2)
    another = member("a", concurrency=2)
    assert [turn.tokens for turn in ask(first, 2).turns] == [2]
    assert ask(second, 2).turns == []

    def told() -> int:
        (turn,) = ask(first, 2, report(2, want=2)).turns
        ask(another, 2, report())
        assert ask(second, 2).turns == []  # both downloads go on
        return turn.tokens

    wait_until(lambda: told() == 0, 20, "the first crawl is to give its tokens up")
    ask(first, 0, report(1))
    turns = wait_until(lambda: ask(second, 2).turns, 20, "it is due")
    assert [turn.tokens for turn in turns] == [1]
    assert client.hget(SLOT, "out") == b"2"


def test_a_crawl_that_has_no_more_requests(member: Make, client: redis.Redis) -> None:
    """Is not waited for."""
    first, second = member("a", concurrency=1, requests=1), member("b", concurrency=1)
    assert ask(first, 1).leases
    assert ask(second, 1).leases == []
    ask(first, 0, report(done=1))
    assert client.hget(SLOT, "line") == b"{b:0}"
    wait_until(lambda: ask(second, 1).leases, 20, "it is due")


def test_tokens_of_a_crawl_that_nobody_starts_again(member: Make, client: redis.Redis) -> None:
    """Workers of another crawl find out that its workers are dead. One of them that was only cut
    off says what it still downloads."""
    dead, lives = member("a", concurrency=2, ttl=0.3), member("b", concurrency=2)
    assert [turn.tokens for turn in ask(dead, 2).turns] == [2]
    assert ask(lives, 2).turns == []

    def reaped() -> bool:
        if ask(lives, 0).overdue_in == 0:
            execute(client, calls.reap("b", 0, lives.joined.run, 5, 10, ttl=3_600.0))
        return client.hget(SLOT, "out") is None

    wait_until(reaped, 20, "the dead worker's tokens are back")
    assert [turn.tokens for turn in ask(lives, 1).turns] == [1]
    ask(dead, 0, report(2))
    assert client.hget(SLOT, "out") == b"3"
    ask(dead, 0, report(0, done=1))
    assert client.hget(SLOT, "out") == b"1"


def test_a_reset_leaves_the_other_crawl_alone(
    member: Make, client: redis.Redis, each_server: RedisServer
) -> None:
    """It gives its own tokens back; what a person has said of a host, and what the other crawl
    knows, stays."""
    first, second = member("a", concurrency=2), member("b", concurrency=2)
    assert [turn.tokens for turn in ask(first, 1).turns] == [1]
    assert [turn.tokens for turn in ask(second, 1).turns] == [1]
    with Frontier.from_url(each_server.url, "a") as frontier:
        frontier.pause("paused.example")
        frontier.reset(force=True)
    assert client.keys("redisq:{a:0}:*") == []
    assert client.hget(SLOT, "out") == b"1"
    with Frontier.from_url(each_server.url, "b") as frontier:
        assert [slot.slot for slot in frontier.slots() if slot.paused] == ["paused.example"]
        frontier.resume("paused.example")
        frontier.reset(force=True)
    assert client.keys("redisq:limits:*:slot:paused.example") == []


def test_news_of_a_host(member: Make, client: redis.Redis) -> None:
    """A failure that one crawl has met parks the host for both, and workers of both are told."""
    first, second = member("a", concurrency=8), member("b", concurrency=8)
    channel = client.pubsub(ignore_subscribe_messages=True)
    channel.subscribe(limits_channel("both"))
    ask(first, 1)
    ask(second, 1)
    downloaded(first, retry_after=5.0)
    ask(first, 0)
    message = wait_until(lambda: channel.get_message(timeout=1), 5, "the news")
    assert message["data"].endswith(b" host")
    (turn,) = ask(second, 1, report(1)).turns
    assert turn.parked > 0
    channel.close()


def test_a_run_that_a_push_has_begun(member: Make, each_server: RedisServer) -> None:
    """From outside of the project, so without the name: the first worker that joins heeds what is
    known of the host all the same, though it has no limits of its own."""
    member("a")
    with Frontier.from_url(each_server.url, "a") as frontier:
        frontier.pause("host")
    with Frontier.from_url(each_server.url, "b", config=EXACT) as frontier:
        frontier.push(["https://other.example/"])
    leases = ask(member("b"), 5).leases
    assert [lease.slot for lease in leases] == ["other.example"]


def test_a_clock_that_went_back(member: Make, client: redis.Redis) -> None:
    """Since the last sign of life of any crawl. One that began later has the same clock for what
    they share, also if the others are dead."""
    ahead = 3_600_000_000
    client.hset("redisq:limits:{both}:clock", "sign", int(time.time() * 1e6) + ahead)
    first = member("a", delay=1)
    ask(first, 1)
    second = member("b", delay=1)
    ask(first, 0, report(since=0, done=1))
    (turn,) = wait_until(lambda: ask(second, 1).turns, 20, "a turn")
    assert turn.next_start <= 1_000_000
    assert int(client.hget(SLOT, "last") or 0) > time.time() * 1e6 + ahead / 2


def test_workers_of_one_crawl_have_one_name(member: Make, client: redis.Redis) -> None:
    """A worker with another one is refused while others live; then it may be changed, and tokens of
    the dead stay nowhere."""
    first = member("a", concurrency=1)
    assert ask(first, 1).leases
    with pytest.raises(ConfigurationMismatch, match="REDISQ_LIMITS_NAME"):
        member("a", "other", concurrency=1)
    client.zadd("redisq:{a:0}:workers", {first.id: 1})
    last = member("a", "", concurrency=1)
    assert last.joined.config.limits_name == ""
    assert last.joined.run == first.joined.run
    assert client.hget(SLOT, "out") is None
    assert ask(last, 1).leases


def test_settings() -> None:
    """Slots are needed, on one server; a name is one that a frontier could have."""
    given = {"REDISQ_LIMITS_NAME": "both"}
    RedisqSettings.read(Settings(given)).check_shards(0)
    with pytest.raises(SettingError, match=r"REDISQ_LIMITS_NAME = 'both': takes '' on a cluster"):
        RedisqSettings.read(Settings(given)).check_shards(3)
    with pytest.raises(SettingError, match="REDISQ_SCHEDULING"):
        RedisqSettings.read(Settings({**given, "REDISQ_SCHEDULING": "priority"}))
    with pytest.raises(SettingError, match=r"REDISQ_LIMITS_NAME.*braces"):
        RedisqSettings.read(Settings({"REDISQ_LIMITS_NAME": "{both}"}))
