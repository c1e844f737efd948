"""Why nothing happens: the sentence for each reason, and what a real frontier is told to be."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from lab.servers import configured, full
from scrapy_redisq.control import Frontier
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.control.why import explain
from scrapy_redisq.errors import FrontierCorrupt
from scrapy_redisq.frontier.growth import GrowthLimit
from scrapy_redisq.frontier.operations import TurnReport
from scrapy_redisq.server.condition import Condition
from tests.control.member import waits
from tests.harness.command import Redisq
from tests.harness.worker import NAME, Make, Worker, ask, downloaded

S = 1_000_000
LIMITS = {"slow": {"delay": 600}, "one": {"concurrency": 1}}


def worker(**fields: Any) -> dict[str, Any]:
    return {"id": "w", "alive": True, "seen_ago": 1.0, **fields}


GIB = 2**30
MIXED = {
    "delay": (100, {"limit": 100}),
    "parked": (12, {"503": 12}),
    "aside": (4, []),
    "paused": (3, []),
}
TWO = [worker(), worker()]

Case = tuple[str, dict[str, Any], list[Condition], dict[str, Any]]


def case(text: str, *servers: Condition, look: dict[str, Any] | None = None, **status: Any) -> Case:
    return text, look or {}, list(servers), status


CASES = {
    "absent": case("There is no such frontier", state="absent"),
    "complete": case("complete: 1,234 requests", state="complete", finished=1234),
    "resetting": case("a former run", state="resetting"),
    "redis_full": case("Redis is full: 1.0 GiB of 1.0 GiB (maxmemory)", Condition(GIB, GIB)),
    "redis_refuses": case("takes no writes: its disk.", Condition(refuses="its disk")),
    "no_workers": case(
        "No worker is alive (1 worker that gave no sign of life for 2 min still holds 16 "
        "requests); scrapy crawl books resumes the run.",
        **{"workers": [worker(alive=False, seen_ago=150)], "leased": 16, "spider": "books"},
    ),
    "no_workers of a run with a name": case(
        "; scrapy crawl books -a 'q=a b' -a n=2 -s REDISQ_FRONTIER='a b' -s REDISQ_RUN=monday "
        "resumes the run.",
        **{"workers": [], "frontier": "a b", "spider": "books", "run_name": "monday"},
        arguments="'q=a b' n=2",
    ),
    "quiet": case(
        "All workers are quiet (3 workers): they finish what they hold, and claim nothing before "
        "scrapy redisq workers work books --all.",
        workers=[worker(quiet=True)] * 3,
    ),
    "sink_away": case(
        "The sinks of all workers are away (1 worker): 48 requests in progress",
        **{"workers": [worker(sink="away")], "leased": 48},
    ),
    "delay": case(
        "All 119 hosts with requests wait: 100 for their delay, 12 parked after 503, 4 set aside "
        "after too many failures, 3 paused by a person; the next start is in 3.1 s.",
        look={"kinds": MIXED, "next": 3.1 * S, "aside": (4, 4, 4), "paused": (3, 3, 3)},
        leased=1,
    ),
    "concurrency": case(
        "The only host with requests waits: at its limit of 1 at a time; 3 of 4 workers have "
        "nothing to do.",
        look={"kinds": {"concurrency": (1, [1])}, "waiting": 4},
        **{"leased": 1, "workers": [worker(leased=1), *[worker()] * 3]},
    ),
    "parked": case(
        "All 3 hosts with requests wait: parked after 503 (2) and no answer (1); the next start is "
        "in 40 s.",
        look={"kinds": {"parked": (3, {"503": 2, "0": 1})}, "next": 40 * S},
    ),
    "parked after a robots.txt": case(
        "All 5 hosts with requests wait: parked after 503 for robots.txt (3) and robots.txt that "
        "cannot be had (2); the next start is in 40 s.",
        look={"kinds": {"parked": (5, {"-503": 3, "-1": 2})}, "next": 40 * S},
    ),
    "set_aside": case(
        "All 4 hosts with requests wait: set aside after too many failures, for 61 s nothing else "
        "is left; the next start is in 2.0 h.",
        look={"kinds": {"aside": (4, [])}, "aside": (4, 4, 4), "stuck": 61 * S, "next": 7_200 * S},
    ),
    "paused": case(
        "The only host with requests waits: paused by a person; scrapy redisq slots resume books "
        "SLOT ends a pause.",
        look={"kinds": {"paused": (1, [])}, "paused": (9, 9, 1)},
    ),
    "unclaimed": case("2 hosts could start, and no", look={"kinds": {"due": (2, [])}, "due": 2}),
    "in_progress": case(
        "in progress: 16 requests of 1 worker, and 1 delayed request, the next in 5 s.",
        look={"delayed": (1, 5 * S, 5 * S)},
        leased=16,
    ),
    "in_progress, in a process": case(
        "All that is left is in progress: 4 requests that cannot be stored, in 2 workers.",
        look={"starting": 2},
        workers=[worker(kept=3), worker(kept=1), worker()],
    ),
    "in_progress, here and there": case(
        "in progress: 1 request of 1 worker, and 1 request that cannot be stored, in 1 worker.",
        **{"leased": 1, "workers": [worker(kept=1)]},
    ),
    "delayed": case(
        "Only 12 delayed requests (retries and other delays) are left: the next is due in 34 s, "
        "the last in 5 min.",
        look={"delayed": (12, 34 * S, 300 * S)},
    ),
    "posted": case("Links of 2 finished pages to other servers", posted=2),
    "starting": case("1 worker may still add start requests", look={"starting": 1}),
    "idle": case("(REDISQ_KEEP_ALIVE, or a feed)", look={"keep_alive": True}),
    "ending": case("about to leave"),
    "working": case(
        "2 workers work on 32 requests of 12 hosts; 7 more hosts could start now.",
        Condition(95, 100),
        look={"kinds": {"due": (12, {"busy": 5}), "parked": (1, {"429": 1})}, "busy": 12},
        **{"leased": 32, "workers": TWO},
    ),
    "working, on all hosts": case(
        "1 worker works on 16 requests of 1 host.",
        look={"kinds": {"due": (1, {"busy": 1})}, "busy": 1},
        leased=16,
    ),
}


@pytest.mark.parametrize("reason", CASES)
def test_each_reason(reason: str) -> None:
    """It is found, and told with its figures."""
    text, look, servers, status = CASES[reason]
    full = {**absent(NAME), "state": "running", "workers": [worker()], **status}
    why = explain(full, [waits(**look)], servers)
    assert why["reason"] == reason.split(" ", maxsplit=1)[0].rstrip(",")
    assert text in why["text"]
    if reason == "working":
        assert why["also"] == ["Redis is 95% full (100 bytes).", "1 host parked after 429."]
    if reason == "delay":
        assert why["waiting"] == {"delay": 100, "parked": 12, "set_aside": 4, "paused": 3}


def test_a_look_at_some_of_many_hosts() -> None:
    """What a part of the hosts says stands for all, on each shard for its own."""
    looks = [
        waits(shard=0, slots=100_000, looked=100, kinds={"delay": (100, {"limit": 100})}),
        waits(shard=0, slots=100_000, looked=100, kinds={"parked": (100, {"503": 100})}),
        waits(shard=1, slots=3, looked=3, kinds={"parked": (3, {"429": 3})}),
    ]
    why = explain({**absent(NAME), "state": "running", "workers": TWO}, looks)
    assert why["estimated"]
    assert (why["slots"], why["waiting"]) == (100_003, {"delay": 50_000, "parked": 50_003})
    assert "about 50,000 for their delay" in why["text"]


def test_back_pressure() -> None:
    """It is told beside what goes on: requests that may wait, or a share of Redis' memory."""
    status = {**absent(NAME), "state": "running", "workers": TWO, "created": 9, "finished": 2}
    (told,) = explain(status, [], growth=GrowthLimit(pending=7))["also"]
    assert told.startswith("Back-pressure: 7 requests are not finished, and REDISQ_MAX_PENDING")
    servers = [Condition(60, 100)]
    (told,) = explain(status, [], servers, growth=GrowthLimit(memory=0.5))["also"]
    assert "REDISQ_MAX_MEMORY" in told
    assert explain(status, [], servers, growth=GrowthLimit(8, 0.7))["also"] == []


# On a server


@pytest.mark.servers("ends")
def test_a_crawl_looked_at(frontier: Frontier, member: Make) -> None:
    """From its begin to its end, with a host for each thing that hosts wait for."""

    def reason() -> str:
        return str(frontier.why()["reason"])

    assert reason() == "absent"
    first, second = member(LIMITS), member(LIMITS)
    first.exchange(starting=True)
    assert reason() == "starting"
    for slot in ("slow", "one", "bad", "held"):
        first.send([f"https://{slot}/{n}" for n in range(3)], slot=slot)
    assert reason() == "unclaimed"
    frontier.pause("held")
    downloaded(first, slot="bad", retry_after=300.0)
    assert sorted(lease.slot for lease in ask(first, turns=[]).leases) == ["one", "one", "slow"]
    ask(first, 0, [TurnReport("slow", 0, 0, 0, 0, 0), TurnReport("one", -1, 0, 1, 0, 0)])
    assert not ask(second).leases
    why = frontier.why()
    assert why["waiting"] == {"delay": 1, "concurrency": 1, "parked": 1, "paused": 1}
    assert (why["slots"], why["idle_workers"], why["estimated"]) == (4, 1, False)
    assert 200 < why["next_start"] < 600
    assert "1 parked after 503" in why["text"]
    for slot in ("slow", "one", "bad", "held"):
        frontier.drop(slot)
    assert reason() == "in_progress"
    for lease in [lease for _, lease in first.holding.values()]:
        first.finish(lease)
    first.send(["https://slow/later"], slot="slow", delay=600_000)
    why = frontier.why()
    assert (why["reason"], "due in 10 min" in why["text"]) == ("delayed", True)
    frontier.drop("slow")
    assert reason() == "ending"
    for worker in (first, second):
        ask(worker)
        worker.leave()
    assert reason() == "complete"


def test_a_key_that_was_damaged(frontier: Frontier, worker: Worker, client: redis.Redis) -> None:
    """The mark that a worker has left is told, also where no look meets the key, until a person
    takes it away."""
    worker.enqueue("https://one/", slot="one")
    ask(worker, 0)
    spoiled = f"redisq:{{{NAME}:0}}:queue:one:0"
    good = client.dump(spoiled)
    client.set(spoiled, "x")
    with pytest.raises(FrontierCorrupt, match="queue:one"):
        ask(worker)
    client.restore(spoiled, 0, good, replace=True)
    why = frontier.look()["why"]
    assert why["reason"] == "corrupt" and spoiled in why["text"]
    with pytest.raises(FrontierCorrupt, match="queue:one"):
        frontier.wanted_workers()
    assert frontier.mend() == [spoiled]
    assert frontier.why()["reason"] != "corrupt"


def test_a_full_redis(redisq: Redisq, frontier: Frontier) -> None:
    """It is said by the command, to people and in JSON; so is that nobody is there."""
    frontier.push(["https://a.example/"])
    assert "No worker is alive; scrapy crawl resumes the run." in redisq("status", NAME).out
    with full(frontier.client):
        assert "Redis is full" in redisq("status", NAME).out
        told = json.loads(redisq("status", NAME, "--json").out)
    assert told["why"]["reason"] == "redis_full"


def test_a_primary_without_replicas(frontier: Frontier, client: redis.Redis) -> None:
    """It takes no writes, workers' signs of life among them: that is told, and not that all of
    them are gone."""
    frontier.push(["https://a.example/"])
    with configured(client, {"min-replicas-to-write": 2}):
        why = frontier.why()
    assert why["reason"] == "redis_refuses"
    assert "0 of 2 replicas follow it (min-replicas-to-write)" in why["text"]


def test_a_paused_crawl(frontier: Frontier, member: Make) -> None:
    """Nothing is claimed, also by workers and of hosts that come later, and in the next run; each
    is told so, until it is resumed."""
    first = member(LIMITS)
    first.send(["https://a/1", "https://a/2"], slot="a")
    (lease, *_) = ask(first, 1).leases
    frontier.pause_crawl()
    frontier.pause_crawl()
    later = member(LIMITS)
    first.send(["https://b/1"], slot="b")
    for worker in (first, later):
        reply = ask(worker)
        assert (reply.leases, reply.told) == ([], "paused")
    status, why = frontier.status(), frontier.why()
    assert (why["reason"], status["state"]) == ("paused", "running")
    assert f"paused by a person since {status['crawl_paused']}; 1 request with" in why["text"]
    assert frontier.wanted_workers().because == "the crawl is paused"
    assert frontier.wanted_workers(rest_after=60).workers == 1, "it holds a request"
    frontier.tell("stop", [later.id])
    assert ask(later).told == "stop"
    frontier.resume_crawl()
    reply = ask(first)
    assert ({lease.slot for lease in reply.leases}, reply.told) == ({"a", "b"}, "")
    assert frontier.status()["crawl_paused"] is None
    frontier.pause_crawl()
    frontier.drop("a")
    for lease in [lease for _, lease in first.holding.values()]:
        first.finish(lease)
    ask(first)
    for worker in (first, later):
        worker.leave()
    assert frontier.status()["state"] == "complete"
    next_run = member(LIMITS)
    next_run.send(["https://a/3"], slot="a")
    assert (ask(next_run).leases, ask(next_run).told) == ([], "paused")
