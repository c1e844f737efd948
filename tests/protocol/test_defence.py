"""Whoever can write to Redis: foreign entries, records and keys, and keys that were deleted.

No entry ends a worker, hides a request or keeps a crawl from ending; a damaged key is named.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis
import redis.asyncio

from lab.servers import wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierCorrupt
from scrapy_redisq.frontier import admin, calls
from scrapy_redisq.frontier.scripts import execute
from tests.harness.worker import NAME, Worker, ask, die, key, member, url_of

ENTRY = b"\x01%s"
"""By its first byte a worker knows what it can read."""


def count(client: redis.Redis, name: str) -> int:
    value: Any = client.hget(key("counts"), name)
    return int(value or 0)


def add(worker: Worker, *urls: str, slot: str = "host") -> None:
    for url in urls:
        worker.enqueue(url, slot=slot, entry=ENTRY % url.encode())
    worker.exchange()


def crawl(client: redis.Redis, worker: Worker) -> list[str]:
    """Fetch what there is until the worker is told that nothing is left. -> what was fetched."""
    fetched: list[str] = []

    def step() -> bool:
        reply = ask(worker, 50)
        for lease in reply.leases:
            if lease.entry[:1] == ENTRY[:1]:
                fetched.append(lease.entry[1:].decode())
                worker.finish(lease)
            else:  # as a worker that cannot decode it
                worker.finish(lease, "dead", reason="undecodable", foreign=True)
        if not reply.leases:
            # What a key was in the way of is tried again after a second: no test waits for it.
            for member, _ in client.zscan_iter(key("delayed")):
                client.zadd(key("delayed"), {member: 1})
            client.zunionstore(key("ready"), {key("ready"): 0})
        return reply.complete and not worker.waiting()

    wait_until(step, 30, "nothing is left")
    return sorted(fetched)


FOREIGN_ENTRIES = {
    "text": b"http://other.example/",
    "empty": b"",
    "one byte": b"\x00",
    "JSON": b'{"url": "http://other.example/"}',
    "pickle": b"\x80\x05}q\x00.",
    "many deliveries": b"\xffabc",
    "large": b"x" * 20_000_000,
}


@pytest.mark.parametrize("kind", FOREIGN_ENTRIES)
def test_foreign_entries(client: redis.Redis, kind: str, worker: Worker) -> None:
    """Bytes in a queue are dead letters, counted apart, and the crawl ends."""
    number = 2 if kind == "large" else 20
    add(worker, "a", "b", "c")
    client.rpush(key("queue:host:0"), *[FOREIGN_ENTRIES[kind]] * number)
    assert crawl(client, worker) == ["a", "b", "c"]
    assert count(client, "foreign") == count(client, "dead") == number
    assert count(client, "created") == count(client, "finished") == 3 + number
    assert worker.leave()
    with Frontier.from_url(url_of(client), NAME) as frontier:
        status = frontier.status()
        assert (status["state"], status["done"], status["queued"]) == ("complete", 3, 0)
        assert status["foreign"] == status["dead"] == number
        letters = list(frontier.dead())
        assert len(letters) == number
        assert all(len(letter.entry) <= 100_000 for letter in letters)


BROKEN_RECORDS = [
    b"",
    b"foreign",
    b"1:x",
    b"1:99:short",
    b"0:4:hos",
    b"abc:4:hostentry",
    b"0:2:\xff\xfeentry",
    b"1:-4:hostentry",
    b":",
]


def test_broken_delayed_members(client: redis.Redis, worker: Worker) -> None:
    """They are dead letters, with and without an id before them; what waits besides is fetched."""
    worker.enqueue("a", entry=b"\1a", delay=1)
    worker.exchange()
    for record in BROKEN_RECORDS:
        client.zadd(key("delayed"), {b"7:" + record: 2, record: 1})
    assert crawl(client, worker) == ["a"]
    assert count(client, "foreign") == 2 * len(BROKEN_RECORDS)
    assert worker.leave()


WRONG = {"string": "SET", "list": "RPUSH", "set": "SADD", "zset": "ZADD", "hash": "HSET"}
SHARED = {
    "meta": "hash", "busy": "hash", "counts": "hash", "letters": "hash", "ready": "zset",
    "delayed": "zset", "workers": "zset", "dead": "zset",
    "leases:%s": "hash", "worker:%s": "hash", "seen:RUN": "hash",
}  # fmt: skip


def _spoil(client: redis.Redis, name: str, kind: str) -> None:
    """Put a key of another type in the place of one."""
    client.delete(name)
    more = {"zset": ["1", "x"], "hash": ["x", "y"]}.get(kind, ["x"])
    client.execute_command(WRONG[kind], name, *more)


@pytest.mark.servers("ends")
@pytest.mark.parametrize("name", [*SHARED, "queue:host:0", "levels:host", "seen:recent:0"])
def test_a_wrong_type(client: redis.Redis, name: str) -> None:
    """It is named, nobody goes on with the run or joins it, and the run is not complete. When a
    person has put the key in order, and said so, all goes on."""
    worker, other = member(client), member(client)
    add(worker, *"abcd")
    other.exchange()
    done, dead, released = worker.claim(3)
    spoiled = key(name.replace("%s", worker.id).replace("RUN", worker.joined.run))
    good = client.dump(spoiled)
    _spoil(client, spoiled, "list" if "queue" not in name else "hash")
    worker.enqueue("new", entry=b"\1new")
    worker.enqueue("once", entry=b"\1once", filtered=False, identity=b"1" * 16, asked=2)
    worker.finish(done)
    worker.finish(dead, "dead", reason="test")
    worker.finish(released, "released")
    for use in (lambda: worker.exchange(2), lambda: other.exchange(2), lambda: member(client)):
        with pytest.raises(FrontierCorrupt, match=re.escape(spoiled)):
            use()
    client.delete(spoiled)
    if good:
        client.restore(spoiled, 0, good)  # type: ignore[arg-type]
    with Frontier.from_url(url_of(client), NAME) as frontier:
        if name != "meta":
            with pytest.raises(FrontierCorrupt, match=re.escape(spoiled)):
                frontier.push(["http://a/"])
            assert frontier.mend() == [spoiled]
        assert frontier.mend() == []
        die(client, worker)
        die(client, other)
        heir = member(client)
        assert not heir.joined.new
        assert set(crawl(client, heir)) >= {"a", "b", "c", "d"} - {"a", "b"}
        assert heir.leave() or heir.conclude()
        frontier.reset()
    assert client.keys("*") == []


def test_what_was_popped_before_is_not_lost(client: redis.Redis, worker: Worker) -> None:
    """A claim that meets a damaged queue leaves what it has claimed of other slots to the worker,
    whose death gives it to others."""
    for n in range(5):
        add(worker, f"{n}", slot=f"{n}")
    _spoil(client, key("queue:4:0"), "hash")
    with pytest.raises(FrontierCorrupt, match="queue:4:0"):
        worker.exchange(10)
    client.delete(key("queue:4:0"))
    with Frontier.from_url(url_of(client), NAME) as frontier:
        frontier.mend()
    die(client, worker)
    heir = member(client)
    assert crawl(client, heir) == ["0", "1", "2", "3"]
    reply = ask(heir)
    assert (reply.complete, reply.created - reply.finished) == (True, 1)


def test_a_request_whose_deliveries_are_more_than_is_allowed_now(client: redis.Redis) -> None:
    """REDISQ_MAX_DELIVERIES may be less when a crawl is resumed: the request is still one of ours,
    and so is not missing when the crawl is over."""
    worker = member(client)
    add(worker, "a")
    entry = client.lpop(key("queue:host:0"))
    client.lpush(key("queue:host:0"), b"\x06" + entry[1:])  # type: ignore[index]
    worker.claim(1)
    die(client, worker)
    with Frontier.from_url(url_of(client), NAME) as frontier:
        assert [letter.reason for letter in frontier.dead()] == ["deliveries"]
    reply = ask(member(client))
    assert (reply.complete, reply.created - reply.finished) == (True, 0)


def test_a_dupefilter_that_nobody_knows(client: redis.Redis) -> None:
    """It is named, and no file is looked for."""
    member(client)
    client.hset(key("meta"), "config:backend", "../x")
    with pytest.raises(FrontierCorrupt, match=re.escape("'../x'")):
        member(client)


def test_many_priorities_of_a_slot(client: redis.Redis, worker: Worker) -> None:
    """A slot with tens of thousands of them is shown and reset in steps that are bounded."""
    most, levels = 1_200, 20_000
    add(worker, "a")
    client.zadd(key("levels:host"), {str(n): -n for n in range(1, levels)})
    for n in range(1, levels, 100):
        client.rpush(key(f"queue:host:{n}"), b"\0\1b")

    def called(command: str) -> int:
        stats: Any = client.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))

    before = called("llen")
    _, ((slot, queued, *_),) = execute(client, admin.list_slots(NAME, 0, names=["host"]))
    assert (slot, queued) >= ("host", levels - most)
    assert called("llen") - before <= most
    status, _ = execute(client, calls.clear(NAME, 0, everything=True, mark=True, force=True))
    assert status == "marked"
    while status != "done":
        before = called("unlink")
        status, _ = execute(client, calls.clear(NAME, 0, everything=True))
        assert called("unlink") - before <= most
    assert not client.keys("*:queue:*") + client.keys("*:levels:*")  # type: ignore[operator]


def test_large_entries_come_in_portions(client: redis.Redis, worker: Worker) -> None:
    """Of large entries a reply brings some; so does one that is repeated, and a look at
    dead letters."""
    client.rpush(key("queue:host:0"), *[b"\0\1" + b"x" * 500_000] * 60)
    client.zadd(key("levels:host"), {"0": 0})
    client.zadd(key("ready"), {"host": 1})
    worker.exchange(60, lose="reply")
    first = worker.claim(60)
    assert 4 <= len(first) <= 25
    while leases := worker.claim(60):
        assert len(leases) <= 25
    assert len(worker.holding) == 60
    worker.exchange(1, lose="reply")
    assert worker.claim(0) == []
    for _, lease in list(worker.holding.values())[:20]:
        worker.finish(lease, "dead", reason="test")
    worker.exchange()
    with Frontier.from_url(url_of(client), NAME) as frontier:
        assert len(list(frontier.dead())) == 20
        assert len(execute(client, admin.letters(NAME, 0, most=100)).letters) <= 10
        assert frontier.requeue() == 20
    steps = 0
    while execute(client, calls.leave(NAME, 0, worker.joined.run, worker.id)):
        steps += 1
    assert steps > 3
    assert client.llen(key("queue:host:0")) == 60
