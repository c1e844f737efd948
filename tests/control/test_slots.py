"""Slots ruled by people while a crawl runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import redis

from lab.servers import RedisServer, full, wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierError
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.limits import SlotLimit
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import Reply
from tests.harness.shard import read_shard
from tests.harness.worker import NAME, Make, Worker, ask, die, downloaded, report

PREFIX = key_prefix(NAME, 0)
FREE, REFUSED = -2, -1  # as in lua/shared/slots/turns.lua


def claimed(reply: Reply) -> list[str]:
    return [lease.slot for lease in reply.leases]


def messages(client: redis.Redis, of: Callable[[], object]) -> list[bytes]:
    """What workers hear while ``of`` is done."""
    heard: list[bytes] = []
    with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(f"{PREFIX}wake")
        pubsub.get_message(timeout=1)
        of()
        while message := pubsub.get_message(timeout=0.05):
            heard.append(message["data"])
    return heard


def test_a_paused_slot(member: Make, frontier: Frontier, client: redis.Redis) -> None:
    """Nobody gets requests of it, who has some is told so, and other slots go on; what is known of
    it does not expire. Resumed, it goes on at once, and leaves nothing that does not expire."""
    worker, other = member(), member()
    worker.send(f"/{n}" for n in range(4))
    worker.send(["/o"], slot="other")
    assert messages(client, lambda: frontier.pause("host")) == [b"0 host"]
    assert claimed(ask(worker)) == ["other"]
    ((slot, left, news, *_, parked, _, held),) = ask(worker, 0, report(want=4)).turns
    assert (slot, left, news, held) == ("host", 0, REFUSED, 1)
    assert parked > 3_000_000_000
    assert client.pttl(f"{PREFIX}slot:host") == -1
    assert claimed(ask(worker)) == []  # and so it says that it waits
    assert frontier.status()["paused"] == 1
    heard = messages(client, lambda: frontier.resume("host"))
    assert heard == [b"0 host", b""]
    assert claimed(ask(other)) == ["host"] * 4
    assert frontier.status()["paused"] == 0
    assert client.pttl(f"{PREFIX}slot:host") != -1
    assert client.exists(f"{PREFIX}paused", f"{PREFIX}ruled") == 0


def test_a_pause_survives(member: Make, frontier: Frontier, client: redis.Redis) -> None:
    """The end of workers that had tokens of it, a join, the end of the run and the next one, and a
    run that is forgotten (REDISQ_RESUME = False); not a reset."""
    limits = {"host": {"concurrency": 2}}
    worker = member(limits)
    worker.send(["/1", "/2"])
    leases = ask(worker).leases
    frontier.pause("host")
    frontier.limit("limited", delay=3)
    for lease in leases:
        worker.finish(lease)
    ask(worker, 0, report(tokens=1))
    ask(worker, 0)
    assert worker.leave()
    assert client.pttl(f"{PREFIX}slot:host") == -1

    def kept() -> tuple[bool, float]:
        return bool(frontier.slot("host").paused), frontier.slot("limited").limit.delay

    again = member(limits)
    assert again.joined.new
    again.send(["/1"])
    assert (claimed(ask(again)), kept()) == ([], (True, 3))
    again.leave()
    last = member(terms=calls.RunTerms(resume=False))
    assert last.joined.new
    last.send(["/1"])
    assert (claimed(ask(last)), kept()) == ([], (True, 3))
    last.leave()
    frontier.reset()
    assert client.keys("*") == []


def test_resume_ends_a_back_off(worker: Worker, frontier: Frontier) -> None:
    """A slot that was set aside goes on at once, as if it had never failed."""
    worker.send(f"/{n}" for n in range(4))
    for _ in range(15):
        downloaded(worker)
        ask(worker, 0)
        time.sleep(0.001)
    slot = frontier.slot("host")
    assert slot.set_aside
    assert (slot.failures, slot.delay_from, slot.status) == (15, None, 503)
    assert slot.delay == 0
    assert 55 < slot.parked <= 120 < (slot.next_start or 0) + 65
    assert frontier.status()["set_aside"] == 1
    frontier.resume("host")
    slot = frontier.slot("host")
    assert not slot.in_trouble
    assert (slot.failures, slot.next_start) == (0, 0)
    assert claimed(ask(worker)) == ["host"] * 4


def test_a_persons_limit(member: Make, frontier: Frontier) -> None:
    """It takes the place of the settings', what is left out stays; workers that join do not change
    it; without it the settings hold again."""
    limits = {"host": {"delay": 2, "concurrency": 3}}
    worker = member(limits)
    worker.send(f"/{n}" for n in range(40))
    assert frontier.slot("host").limit == SlotLimit(2, 3)
    assert frontier.slot("host").limit_from == "settings"
    assert frontier.limit("host", delay=0, rate="4/s") == SlotLimit(0, 3, 4)
    member({"host": {"delay": 9}})
    slot = frontier.slot("host")
    assert (slot.limit, slot.limit_from, bool(slot.ruled)) == (SlotLimit(0, 3, 4), "person", True)
    ((*_, delay, interval, burst, tokens, _, _, _),) = ask(worker, 40).turns
    assert (delay, interval, burst, tokens) == (0, 250_000, 1, 3)
    assert frontier.unlimit("host") == SlotLimit(9)
    assert frontier.slot("host").ruled is None
    for options, explained in (
        ({"delay": -1}, "delay -1: takes seconds from 0 to 86,400, such as 1.5"),
        ({"delay": "1,5"}, "delay '1,5': takes seconds from 0 to 86,400, such as 1.5"),
        ({"delay": [1]}, r"delay \[1\]: takes seconds"),
        ({"concurrency": 1.5}, "concurrency 1.5: takes a whole number"),
        ({"rate": "often"}, "rate 'often': takes .* such as '30/m'"),
        ({"dealy": 1}, "'delay' .* such as '30/m'"),
    ):
        with pytest.raises(ValueError, match=explained):
            frontier.limit("host", **options)


@pytest.mark.parametrize("how", ["limited", "deployed"])
@pytest.mark.parametrize("rate", ["10/s", ""])
def test_a_raised_rate(member: Make, frontier: Frontier, rate: str, how: str) -> None:
    """Once a burst was used up at a slow rate, a faster one holds within a second, or none, as a
    person or a worker that joins says; also if a worker that has not heard of it reports."""
    old = {"rate": "60/h", "burst": 60}
    worker, other = member({"host": old}), member({"host": old})
    worker.send(f"/{n}" for n in range(90))
    reported = report(since=0, tat=3_600_000_000, done=1)
    assert len(ask(worker, 60).leases) == 60
    ask(worker, 0, reported)
    assert ask(other).leases == []
    assert (frontier.slot("host").next_start or 0) > 50
    if how == "limited":
        frontier.limit("host", rate=rate)
    else:
        member({"host": {**old, "rate": rate}})
    assert (frontier.slot("host").next_start or 0) <= 0.1
    ask(worker, 0, reported)
    wait_until(lambda: ask(other).leases, 20, "it goes on")


def test_a_lowered_concurrency(member: Make, frontier: Frontier) -> None:
    """What is in progress ends; until it has, nothing new is started by anybody, and then no more
    than is allowed."""
    limits = {"host": {"concurrency": 8}}
    first, second = member(limits), member(limits)
    first.send(f"/{n}" for n in range(90))
    for worker in (first, second):
        reply = ask(worker, 4)
        assert [turn[8] for turn in reply.turns] == [4]
    frontier.limit("host", concurrency=2)
    # Each still has four downloads, and waits with more.
    for flying in (4, 3, 2):
        for worker in (first, second):
            reply = ask(worker, 0, report(tokens=flying, want=5))
            assert [turn[8] for turn in reply.turns if turn[2] != REFUSED] == [0]
            assert reply.leases == []
    ((_, _, news, *_),) = ask(first, 0, report(tokens=0, want=5)).turns
    assert news == REFUSED  # the other one still has two
    assert [turn[8] for turn in ask(second, 0, report(tokens=1, want=5)).turns] == [1]
    assert [turn[8] for turn in ask(first, 5, report(tokens=0, want=5)).turns] == [1]


def test_a_lost_reply_with_a_token_alone(member: Make, client: redis.Redis) -> None:
    """The slot's first request is a suspect, which that worker may not have: it hears of its token
    with the next reply, and gives it back."""
    dead, worker, other = (member({"*": {"concurrency": 1}}, suspect_from=1) for _ in range(3))
    dead.send(["/s"])
    assert claimed(ask(dead)) == ["host"]
    die(client, dead)
    assert worker.exchange(5, suspects=0, lose="reply") is None
    again = worker.exchange(5, suspects=0)
    assert again is not None
    assert [(turn.slot, turn.tokens) for turn in again.turns] == [("host", 1)]
    ask(worker, 0, report(done=1))
    assert claimed(ask(other)) == ["host"]


def test_dropping(worker: Worker, frontier: Frontier, client: redis.Redis) -> None:
    """All that is queued or delayed of the slot, and nothing else; leased requests go on."""
    for n in range(450):
        slot = "host" if n % 3 else "other"
        worker.enqueue(f"/{n}", slot=slot, priority=n % 7, delay=3_600_000 if n < 300 else 0)
        if n % 150 == 149:
            ask(worker, 0)
    leases = ask(worker, 2).leases
    assert sorted(lease.slot for lease in leases) == ["host", "other"]
    assert frontier.drop("host") == 299
    assert frontier.drop("host") == 0
    for lease in leases:
        worker.finish(lease)
    ask(worker, 0)
    shard = read_shard(client, NAME, 0)
    shard.check()
    assert len(shard.delayed) == 100
    assert {slot for slot, _ in shard.queues} == {"other"}
    status = frontier.status()
    assert (status["dropped"], status["finished"], status["done"]) == (299, 301, 2)
    assert status["queued"] + status["delayed"] == 149


def test_dropping_ends_the_run(worker: Worker, frontier: Frontier, client: redis.Redis) -> None:
    """Workers that wait hear of it at once, and find that all is finished."""
    worker.send(["/1", "/2"], delay=3_600_000)
    reply = ask(worker)
    assert (reply.leases, reply.complete) == ([], False)
    assert messages(client, lambda: frontier.drop("host")) == [b""]
    assert ask(worker).complete
    assert worker.leave()
    assert frontier.status()["state"] == "complete"


def test_listing(each_server: RedisServer) -> None:
    """Every slot of every shard that has requests or that somebody has ruled, once, in bounded
    calls; those that are finished are not there."""
    config = FrontierConfig(shards=3, dupefilter="exact", backend="exact")
    with Frontier.from_url(each_server.url, "shop", config=config) as frontier:
        frontier.push(f"http://host-{n}.example/{k}" for n in range(220) for k in range(n % 3 + 1))
        frontier.pause("paused.example")
        frontier.limit("ruled.example", rate="1/s", burst=2)
        listed = list(frontier.slots())
        slots = {slot.slot: slot for slot in listed}
        assert len(listed) == len(slots) == 222
        assert all(slots[f"host-{n}.example"].queued == n % 3 + 1 for n in range(220))
        free = slots["host-5.example"]
        assert free.next_start == 0
        assert free.due_for is not None
        assert 0 <= free.due_for < 600
        assert slots["paused.example"].due_for is slots["ruled.example"].due_for is None
        assert (free.queued, free.leased, free.limit, free.in_trouble) == (3, 0, SlotLimit(), False)
        assert (slots["paused.example"].next_start, bool(slots["paused.example"].paused)) == (
            None,
            True,
        )
        assert slots["ruled.example"].limit == SlotLimit(0, 0, 1, 2)
        assert min(listed, key=lambda slot: slot.rank).slot == "paused.example"
        assert sum(frontier.drop(slot) for slot in slots) == frontier.status()["dropped"] == 439
        assert {slot.slot for slot in frontier.slots()} == {"paused.example", "ruled.example"}


def test_where_there_are_no_slots(each_server: RedisServer) -> None:
    """One queue for all hosts has none to rule, nor has a frontier that is not there."""
    with Frontier.from_url(each_server.url, "none") as frontier:
        assert list(frontier.slots()) == []
        with pytest.raises(FrontierError, match="there is no frontier 'none'"):
            frontier.pause("host")
    config = FrontierConfig(scheduling="priority")
    with Frontier.from_url(each_server.url, "strict", config=config) as frontier:
        frontier.push(["http://host.example/"])
        assert [(slot.slot, slot.queued) for slot in frontier.slots()] == [("*", 1)]
        for rule in (frontier.pause, frontier.resume, frontier.drop, frontier.unlimit):
            with pytest.raises(FrontierError, match="REDISQ_SCHEDULING"):
                rule("host.example")


def test_no_memory_left(worker: Worker, frontier: Frontier) -> None:
    """At maxmemory slots can still be paused, resumed, limited and dropped."""
    worker.send([f"/{n}" for n in range(10)])
    with full(frontier.client):
        frontier.pause("host")
        frontier.resume("host")
        frontier.limit("host", delay=1)
        assert frontier.drop("host") == 10
