"""Workers as people see and steer them: what they tell of themselves, and what they are told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any, cast

import pytest
import redis
from scrapy import Spider
from scrapy.settings import Settings

from lab.servers import full, wait_until
from lab.site import Answer, Site
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.worker import report
from scrapy_redisq.worker.origin import digest_of, release_of
from tests.harness.command import Redisq
from tests.harness.crawl import Run, together, wait_until_joined
from tests.harness.worker import EXACT, NAME, Worker, die

REPORT = {
    "pages_per_minute": 12.5,
    "cpu_seconds": 3.25,
    "rss_bytes": 90_000_000,
    "blocked_seconds": 1.5,
    "downloading": 2,
    "in_callbacks": 1,
    "waiting_for_sink": 0,
    "waiting_to_send": 7,
    "kept": 3,
    "sink": "away",
    "quiet": False,
}


def key(worker: Worker) -> str:
    return f"{key_prefix(NAME, 0)}worker:{worker.id}"


def exchange(worker: Worker, **told: Any) -> str:
    """-> what the worker is told."""
    return worker.exchange(**told).told


# Protocol


@pytest.mark.servers("ends")
def test_told(client: redis.Redis, frontier: Frontier) -> None:
    """Each exchange brings what a worker was told last, whoever else is told something else; who
    was told to stop is told nothing else."""
    first, second, dead = (Worker(client, NAME, EXACT) for _ in range(3))
    client.zadd(key_prefix(NAME, 0) + "workers", {dead.id: 0})
    assert exchange(first) == ""
    assert frontier.tell("quiet", [first.id, dead.id, "nobody"]) == 1
    assert [exchange(first), exchange(second), exchange(first)] == ["quiet", "", "quiet"]
    assert frontier.tell("stop", [first.id]) == 1
    with full(client):
        assert frontier.tell("work") == 1, "also beside a full Redis"
    assert [exchange(first), exchange(second)] == ["stop", "work"]
    assert frontier.tell("work", []) == 0
    assert not client.exists(key(dead).replace(dead.id, "nobody"))
    told = {worker["id"]: worker["told"] for worker in frontier.workers()}
    assert told == {first.id: "stop", second.id: "work", dead.id: ""}
    first.rejoin()
    assert exchange(first) == "stop", "under its new id, too"
    with pytest.raises(ValueError, match="quiet, work, stop"):
        frontier.tell("sleep")
    with pytest.raises(TypeError, match="a list"):
        frontier.tell("quiet", first.id)


@pytest.mark.parametrize("leases", [0, 150], ids=["at once", "in steps"])
def test_told_while_taken_for_dead(client: redis.Redis, frontier: Frontier, leases: int) -> None:
    """What a worker was told before it was reaped it hears when it has come back, whether nothing
    is left of it by then or leases are. What never comes back leaves that for a day."""
    worker = Worker(client, NAME, EXACT)
    frontier.push(f"https://a.example/{n}" for n in range(leases))
    while worker.claim(100):
        pass
    assert frontier.tell("stop", [worker.id]) == 1
    die(client, worker)
    assert frontier.tell("work", [worker.id]) == 0, "nobody of that name is there"
    former = key(worker)
    assert leases or 0 < client.pttl(former) <= 86_400_000
    worker.exchange()
    assert worker.rejoins == 1
    assert exchange(worker) == "stop"
    worker.leave()
    assert client.exists(former, key(worker)) == 0


def test_reports(client: redis.Redis, frontier: Frontier, worker: Worker) -> None:
    """What a worker tells of itself is shown; of one that has told nothing yet it is None."""
    exchange(worker, report=json.dumps(REPORT | {"of_a_later_release": 1}))
    exchange(worker)
    for shown in (frontier.workers(), frontier.status()["workers"]):
        assert {name: shown[0][name] for name in REPORT} == REPORT
    client.hdel(key(worker), "report", "told", "release", "settings")
    (shown,) = frontier.workers()
    assert {shown[name] for name in REPORT} == {None}
    assert (shown["told"], shown["release"], shown["quiet"]) == ("", "", None)
    assert exchange(worker) == ""


def test_stats_are_added_up(client: redis.Redis, frontier: Frontier) -> None:
    """Those of all workers, whether they are there or not, each count once: also one that comes
    back, and one whose replies are lost. Lowest and highest values count. Names are bounded."""
    first, second = (Worker(client, NAME, EXACT) for _ in range(2))
    for worker, n in ((first, -2), (second, 5), (first, 1)):
        worker.sessions[0].outgoing.tally["stat:a"] += n
        extremes = {"stat:b/max": n, "stat:c_min": n}
        worker.exchange(lose="reply" if n == 5 else "", extremes=extremes)
        worker.exchange()
    expected = {"a": 4, "b/max": 5, "c_min": -2}
    assert frontier.status()["stats"] == expected
    die(client, first)
    first.sessions[0].outgoing.tally["stat:a"] -= 1
    first.exchange()
    assert first.rejoins == 1
    for worker in (first, second):
        worker.exchange()
        worker.leave()
    assert frontier.status()["stats"] == {**expected, "a": 3}
    worker = Worker(client, NAME, EXACT)
    worker.sessions[0].outgoing.tally["stat:both"] += 7
    worker.exchange(lose="reply")
    die(client, worker)
    worker.exchange()
    worker.exchange()
    assert (worker.rejoins, frontier.status()["stats"]["both"]) == (1, 7)
    worker.leave()
    worker = Worker(client, NAME, EXACT)
    for n in range(3):
        many = {f"stat:{n}.{m}": 1 for m in range(500)}
        worker.sessions[0].outgoing.tally.update(many | {"stat:a": 1, "x": 1})
        worker.exchange(extremes={f"stat:{n}/max": 1})
    stats = frontier.status()["stats"]
    assert (stats["a"], len(stats)) == (3, 1_003), "of the next run"
    assert client.hget(f"{key_prefix(NAME, 0)}counts", "x") == b"3"


def test_which_stats_are_told() -> None:
    """Whole numbers under names that can be shown; the end of a name says how they are put
    together."""
    good = {"retry/max_reached": 3, "admin": 2, "max": 1, "memusage/max": 7, "a_min": 0}
    bad: dict[Any, Any] = {"float": 0.5, "flag": True, "text": "1", "huge": 2**63}
    bad |= {"\ud800": 1, "x" * 201: 1, 5: 1}
    assert report.stats_to_tell({**bad, **good}) == (
        {"stat:retry/max_reached": 3, "stat:admin": 2},
        {"stat:max": 1, "stat:memusage/max": 7, "stat:a_min": 0},
    )
    assert sum(map(len, report.stats_to_tell({f"{n}/max": 1 for n in range(900)}))) == 500


def test_a_callback_that_blocks() -> None:
    """The longest time for which nothing else ran is reported."""

    async def block() -> float:
        reporter = report.Reporter(cast(Any, None))
        watch = asyncio.ensure_future(reporter.watch())
        await asyncio.sleep(0)  # it has begun to wait
        began = time.monotonic()
        while time.monotonic() < began + report.LOOK + 0.3:
            pass
        for _ in range(5):
            await asyncio.sleep(0)  # it wakes
        watch.cancel()
        return reporter.blocked

    assert asyncio.run(block()) >= 0.3


def test_releases() -> None:
    """Of the same code and settings they are the same in each process, whatever objects there are
    in the settings, and where the log goes."""

    def digest(**more: Any) -> str:
        settings = {"ITEM_PIPELINES": {Run: 1, "b": {3, 2}}, "OBJECT": object(), **more}
        return digest_of(Settings(settings, priority="project"))

    assert digest() == digest(LOG_FILE="w1.log", REDISQ_RUN="monday", FEEDS={"w1.csv": {}})
    assert digest() != digest(CONCURRENT_REQUESTS=9)
    assert len(release_of(Run)) == 8  # type: ignore[arg-type]
    assert release_of(type("Typed", (Spider,), {"__module__": "__console__"})) == ""


# Commands


def test_the_command(redisq: Redisq, one_client: redis.Redis) -> None:
    """Workers are named by host and process, or by id; who is not there is named."""
    first, second = (Worker(one_client, NAME, EXACT) for _ in range(2))
    exchange(first, report=json.dumps(REPORT))
    one_client.hset(key(second), "pid", 2)
    shown = redisq("workers")
    assert shown.code == 0
    assert "here:1" in shown.out
    assert "sink away" in shown.out
    assert "12.5" in shown.out
    lines = [json.loads(line) for line in redisq("workers", NAME, "--json").out.splitlines()]
    assert {line["id"] for line in lines} == {first.id, second.id}
    assert lines[0]["frontier"] == NAME
    assert redisq("workers", "quiet", "here:1").code == 0
    assert redisq("workers", "stop", NAME, "here:2").code == 0
    assert [exchange(first), exchange(second)] == ["quiet", "stop"]
    ran = redisq("workers", "work", NAME, "here:1", "here:3")
    assert (ran.code, ran.out.count("1 worker was"), "here:3" in ran.err) == (1, 1, True)
    assert "1 worker was" in redisq("workers", "work", "--all").out  # the other was stopped
    assert redisq("workers", "work", NAME, "--all").code == 0
    assert redisq("workers", "work", "other", "--all").code == 1
    for wrong in (["quiet"], ["quiet", NAME], ["quiet", NAME, "here:1", "--all"]):
        ran = redisq("workers", *wrong)
        assert (ran.code, "--all" in ran.err) == (2, True)


# Crawls


def test_a_fleet_that_is_told(crawl: Run, redisq: Redisq) -> None:
    """A quiet worker finishes what it holds and claims nothing until it is told to work; one that
    is told to stop leaves, and others fetch the rest. They end together, the quiet ones, too."""
    first_half, rest = threading.Event(), threading.Event()

    def page(path: str) -> Answer | str | None:
        if path == "/0":
            return "".join(f'<a href="/{n}">' for n in range(1, 80))
        until = first_half if int(path[1:]) < 40 else rest
        return Answer("<html></html>", until=until) if path[1:].isdigit() else None

    with Site(page) as site, crawl.frontier("follow") as frontier:
        settings = {"CONCURRENT_REQUESTS": 4, "REDISQ_HISTORY": 100}
        settings |= {"DUPEFILTER_CLASS": "scrapy_redisq.ExactDupeFilter"}
        with together(crawl._folder) as gate:
            workers = [crawl("follow", site, {**settings, **gate}) for _ in range(3)]
            wait_until_joined(workers)
            pids = [worker.process.pid for worker in workers]

            def look(which: int) -> dict[str, Any]:
                (found,) = (one for one in frontier.workers() if one["pid"] == pids[which])
                return found

            def told(which: int, what: str) -> None:
                assert redisq("workers", what, f"{look(which)['host']}:{pids[which]}").code == 0

            told(2, "quiet")
            wait_until(lambda: look(2)["quiet"], 20, "it says that it is quiet")
        wait_until(lambda: look(0)["leased"] and look(1)["leased"], 60, "both work")
        assert len({look(n)["release"] for n in range(3)} - {""}) == 1
        told(0, "quiet")
        wait_until(lambda: look(0)["quiet"], 20, "it says so")
        first_half.set()
        wait_until(lambda: not look(0)["leased"] and look(1)["leased"] >= 4, 60, "it is done")
        assert frontier.status()["queued"] > 20
        assert look(0)["pages"] > 0
        told(0, "work")
        wait_until(lambda: look(0)["leased"] >= 4, 60, "it claims again")
        told(1, "stop")
        workers[1].wait_for("Told to stop")
        rest.set()
        assert [worker.wait().reason for worker in workers] == ["finished", "shutdown", "finished"]
        assert workers[2].stats.get("scheduler/dequeued", 0) == 0
        status = frontier.status()
        assert (status["state"], status["pages"], status["items"]) == ("complete", 80, 80)
        assert status["errors"] == 0
        history = frontier.history()
        shown = {(one["status"], one["items"], one["attempts"]) for one in history}
        assert (len(history), shown) == (80, {(200, 1, 1)})
        told = frontier.url(history[0]["url"])
        assert (told["state"], told["history"]) == ("done", history[0])
        assert history[0]["url"] in redisq("url", "follow", history[0]["url"]).out
        assert redisq("url", "follow", "--forget", "--host", "other.example").code == 1
        assert frontier.url(f"{site.url}/0")["seen"]
        ran = redisq("url", "follow", "--forget", "--host", "127.0.0.1")
        assert ": 80 URLs of 127.0.0.1 count" in ran.out
        assert (frontier.status()["seen"], frontier.url(f"{site.url}/0")["seen"]) == (0, False)
    assert set(site.counts().values()) == {1}
