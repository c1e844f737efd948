"""Whoever can write to Redis: foreign entries, records and keys, and keys that were deleted.

Nothing of it ends a worker, hides a request or keeps a crawl from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis
import redis.asyncio

from lab.servers import RedisServer, wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import FrontierCorrupt
from scrapy_redisq.frontier import admin, calls, runs
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import DownloadResult, TurnReport
from scrapy_redisq.frontier.scripts import execute, execute_async
from scrapy_redisq.frontier.seen import probe
from tests.harness.worker import EXACT, NAME, Worker, ask

ENTRY = b"\x01%s"
"""By its first byte a worker knows what it can read."""


@pytest.fixture
def member(client: redis.Redis) -> Callable[..., Worker]:
    """Makes workers of the frontier "books"; keywords are those of its configuration."""

    return _maker(client)


@pytest.fixture
def one_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of one server, for what has many variants."""
    with redis_server.client() as client:
        yield client


def _maker(client: redis.Redis) -> Callable[..., Worker]:
    def make(**config: Any) -> Worker:
        return Worker(client, NAME, dataclasses.replace(EXACT, **config))

    return make


def _steps(client: redis.Redis, steps: runs.Steps[Any]) -> Iterator[str]:
    """Run a procedure; -> the names of its scripts."""
    with contextlib.suppress(StopIteration):
        call = next(steps)
        while True:
            yield call.script.name
            call = steps.send(execute(client, call))


def key(name: str) -> str:
    return key_prefix(NAME, 0) + name


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

    wait_until(step, 10, "nothing is left")
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
def test_foreign_entries(member: Callable[..., Worker], client: redis.Redis, kind: str) -> None:
    """Bytes in a queue are dead letters, counted apart, and the crawl ends."""
    worker = member()
    number = 2 if kind == "large" else 50
    add(worker, "a", "b", "c")
    client.rpush(key("queue:host:0"), *[FOREIGN_ENTRIES[kind]] * number)
    assert crawl(client, worker) == ["a", "b", "c"]
    assert count(client, "foreign") == count(client, "dead") == number
    assert count(client, "created") == count(client, "finished") == 3 + number
    assert worker.leave()
    with Frontier.from_url(_url(client), NAME) as frontier:
        status = frontier.status()
        assert (status["state"], status["done"], status["queued"]) == ("complete", 3, 0)
        assert status["foreign"] == status["dead"] == number
        letters = list(frontier.dead())
        assert len(letters) == number
        assert all(len(letter.entry) <= 100_000 for letter in letters)


def test_a_copy_of_an_entry(member: Callable[..., Worker], client: redis.Redis) -> None:
    """It is fetched as well, and the crawl ends although more was finished than created."""
    worker, other = member(), member()
    other.exchange()
    add(worker, "a", "b")
    client.rpush(key("queue:host:0"), b"\x00" + ENTRY % b"copy", b"\x03" + ENTRY % b"copy")
    assert crawl(client, worker) == ["a", "b", "copy", "copy"]
    assert ask(other).complete
    worker.leave()
    assert other.leave()


@pytest.mark.parametrize(
    "level", ["abc", "", "1e3", "1.5", "nan", "9" * 40, "--1", b"\xff\xfe", "1 ", "0:3:xyz"]
)
def test_levels_that_are_no_numbers(one_client: redis.Redis, level: str | bytes) -> None:
    """What stands in their queues is claimed, and can be given back and taken over."""
    client, member = one_client, _maker(one_client)
    worker = member()
    add(worker, "a")
    prefix = key("queue:host:").encode()
    client.zadd(key("levels:host"), {level: -9})
    client.rpush(prefix + (level if isinstance(level, bytes) else level.encode()), b"\0\1b")
    leases = worker.claim(5)
    assert sorted(lease.entry for lease in leases) == [b"\1a", b"\1b"]
    heir = member()
    _die(client, worker)
    again = heir.claim(5)
    assert len(again) == 2
    for lease in again:
        heir.finish(lease, "released")
    assert crawl(client, heir) == ["a", "b"]
    assert heir.leave()


def test_a_slot_of_many_dots(client: redis.Redis) -> None:
    """Not as many limits are looked up as its name has parts: it is a slot as any other."""
    worker, slot = Worker(client, NAME, EXACT, limits={"*": "0 0 1 3"}), "." * 20_000
    add(worker, "a")
    client.rpush(key(f"queue:{slot}:0"), b"\0\1foreign")
    client.zadd(key(f"levels:{slot}"), {"0": 0})
    client.zadd(key("ready"), {slot: 1})
    assert crawl(client, worker) == ["a", "foreign"]


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


@pytest.mark.parametrize("record", BROKEN_RECORDS)
def test_broken_delayed_members(
    member: Callable[..., Worker], client: redis.Redis, record: bytes
) -> None:
    """They are dead letters, with and without an id before them; what waits besides is fetched."""
    worker = member()
    worker.enqueue("a", entry=b"\1a", delay=1)
    worker.exchange()
    client.zadd(key("delayed"), {b"7:" + record: 2, record: 1})
    assert crawl(client, worker) == ["a"]
    assert count(client, "foreign") == 2
    assert worker.leave()


@pytest.mark.parametrize("way", ["die", "leave", "replay"])
@pytest.mark.parametrize("record", BROKEN_RECORDS)
def test_broken_lease_records(one_client: redis.Redis, record: bytes, way: str) -> None:
    """Whoever takes them over, or gives them back, takes the others over as well."""
    client, member = one_client, _maker(one_client)
    worker = member()
    add(worker, "a", "b")
    worker.exchange(1)
    for lease in ("7", "x", b"\xff"):
        client.hset(key("leases:" + worker.id), lease, record)  # type: ignore[arg-type]
    heir = member()
    if way == "replay":
        worker.exchange(1, lose="reply")
        assert len(worker.claim(0)) == 1
    if way == "leave":
        worker.leave()
    else:
        _die(client, worker)
    assert crawl(client, heir) == ["a", "b"]
    assert count(client, "foreign") == 3
    assert heir.leave()


OUTCOMES = ["done", "dead", "released", "retried", "backed_off"]


def test_a_record_that_was_written_over(member: Callable[..., Worker], client: redis.Redis) -> None:
    """Whatever stands in the place of a lease's record, the lease can be ended."""
    worker = member()
    add(worker, "a", "b", "c", "d", "e")
    leases = worker.claim(5)
    for lease in leases:
        client.hset(key("leases:" + worker.id), lease.id, b"broken")
    for lease, outcome in zip(leases, OUTCOMES, strict=True):
        worker.finish(lease, outcome, reason="test", delay=1, entry=b"\1new")
    assert crawl(client, worker) == []
    assert count(client, "leased") == 0
    assert worker.leave()


def test_another_slot_in_the_record(member: Callable[..., Worker], client: redis.Redis) -> None:
    """It goes where its record says, and leaves nothing behind."""
    worker = member()
    add(worker, "a")
    (lease,) = worker.claim(1)
    client.hset(key("leases:" + worker.id), lease.id, b"3:5:other\0\1a")
    worker.finish(lease, "released")
    assert crawl(client, worker) == ["a"]
    assert client.exists(key("busy")) == 0
    assert worker.leave()


@pytest.mark.parametrize(
    "name", ["created", "finished", "leased", "starting", "waiting", "dead", "claimed"]
)
@pytest.mark.parametrize("value", ["-7", "1000", "abc", "1.5", "", str(2**53 + 1), "9" * 20])
def test_counts_of_another_hand(one_client: redis.Redis, name: str, value: str) -> None:
    """No count keeps a crawl from ending, or ends it early."""
    client, member = one_client, _maker(one_client)
    worker, other = member(), member()
    add(worker, "a", "b", "c")
    client.hset(key("counts"), name, value)
    (lease,) = worker.claim(1)
    assert not ask(other, 0).complete
    client.hset(key("counts"), name, value)
    worker.finish(lease, "dead", reason="test")
    held = worker.claim(5)
    assert len({lease.id for lease in held}) == client.hlen(key(f"leases:{worker.id}")) == 2
    assert not ask(other).complete
    for lease in held:
        worker.finish(lease)
    worker.exchange()
    assert crawl(client, other) == []
    worker.leave()
    assert other.leave()


def name_of(name: str, worker: Worker) -> str:
    """A key's name for this worker and its run."""
    return name.replace("%s", worker.id).replace("RUN", worker.joined.run)


DELETED = ["ready", "levels:host", "queue:host:0", "counts", "busy", "delayed", "dead", "letters"]
DELETED += ["leases:%s", "worker:%s", "workers", "seen:RUN", "reaped"]


@pytest.mark.parametrize("name", DELETED)
def test_a_deleted_key(member: Callable[..., Worker], client: redis.Redis, name: str) -> None:
    """The crawl goes on, and ends."""
    worker, other = member(), member()
    add(worker, *"abcdef")
    worker.enqueue("later", entry=b"\1later", delay=3_600_000)
    for lease in worker.claim(2):
        worker.finish(lease)
    for lease in worker.claim(2)[:1]:
        worker.finish(lease, "dead", reason="test")
    worker.exchange()
    client.delete(key(name_of(name, worker)))
    worker.exchange()
    for _, lease in list(worker.holding.values()):
        worker.finish(lease)
    worker.exchange()
    worker.leave()
    _die(client, worker)
    crawl(client, other)
    add(other, "new")
    assert crawl(client, other) == ["new"]
    assert other.leave()


@pytest.mark.parametrize("name", ["generation", "order", "state", "seeded", "began"])
def test_a_deleted_field(member: Callable[..., Worker], client: redis.Redis, name: str) -> None:
    """A run without one of its fields goes on, or it is said what is missing."""
    worker = member()
    generation = worker.joined.generation
    add(worker, "a")
    client.hdel(key("meta"), name)
    worker.enqueue("b", entry=b"\1b")
    if name == "generation":
        with pytest.raises(FrontierCorrupt, match="meta"):
            worker.exchange()
        client.hset(key("meta"), name, generation)
        assert execute(client, admin.mend(NAME, 0)) == key("meta")
    other = member()
    assert not other.joined.new
    other.exchange()
    other.leave()
    assert crawl(client, worker) == ["a", "b"]


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
    worker, other = _maker(client)(), _maker(client)()
    add(worker, *"abcd")
    other.exchange()
    done, dead, released = worker.claim(3)
    spoiled = key(name_of(name, worker))
    good = client.dump(spoiled)
    _spoil(client, spoiled, "list" if "queue" not in name else "hash")
    worker.enqueue("new", entry=b"\1new")
    worker.enqueue("once", entry=b"\1once", filtered=False, identity=b"1" * 16, asked=2)
    worker.finish(done)
    worker.finish(dead, "dead", reason="test")
    worker.finish(released, "released")
    for member in (worker, other):
        with pytest.raises(FrontierCorrupt, match=re.escape(spoiled)):
            member.exchange(2)
    with pytest.raises(FrontierCorrupt, match=re.escape(spoiled)):
        _maker(client)()
    client.delete(spoiled)
    if good:
        client.restore(spoiled, 0, good)  # type: ignore[arg-type]
    with Frontier.from_url(_url(client), NAME) as frontier:
        if name != "meta":
            with pytest.raises(FrontierCorrupt, match=re.escape(spoiled)):
                frontier.push(["http://a/"])
            assert frontier.mend() == [spoiled]
        assert frontier.mend() == []
        _die(client, worker)
        _die(client, other)
        heir = _maker(client)()
        assert not heir.joined.new
        assert set(crawl(client, heir)) >= {"a", "b", "c", "d"} - {"a", "b"}
        assert heir.leave() or heir.conclude()
        frontier.reset()
    client.delete(key("reaped"))  # which expires
    assert client.keys("*") == []


def test_what_was_popped_before_is_not_lost(
    member: Callable[..., Worker], client: redis.Redis
) -> None:
    """A claim that meets a damaged queue leaves what it has claimed of other slots to the worker,
    whose death gives it to others."""
    worker = member()
    for n in range(5):
        add(worker, f"{n}", slot=f"{n}")
    _spoil(client, key("queue:4:0"), "hash")
    with pytest.raises(FrontierCorrupt, match="queue:4:0"):
        worker.exchange(10)
    client.delete(key("queue:4:0"))
    with Frontier.from_url(_url(client), NAME) as frontier:
        frontier.mend()
    _die(client, worker)
    heir = member()
    assert crawl(client, heir) == ["0", "1", "2", "3"]
    reply = ask(heir)
    assert (reply.complete, reply.created - reply.finished) == (True, 1)


def test_what_was_recorded_and_not_pushed_is_missing(
    member: Callable[..., Worker], client: redis.Redis
) -> None:
    """A dupefilter of which one key is damaged has recorded requests that are not queued: the crawl
    that goes on without that key does not end as if all was done."""
    worker = member()
    add(worker, "first")
    generation = worker.joined.generation
    before = set(client.keys("*"))
    add(worker, "a")
    (bucket,) = set(client.keys("*")) - before
    _spoil(client, bucket.decode(), "string")
    with pytest.raises(FrontierCorrupt, match=re.escape(generation)):
        add(worker, "b", "c", "a")
    client.delete(bucket)
    with Frontier.from_url(_url(client), NAME) as frontier:
        frontier.mend()
    _die(client, worker)
    heir = member()
    add(heir, "b", "c", "a")
    crawl(client, heir)
    reply = ask(heir)
    assert reply.complete
    assert reply.created - reply.finished >= 2


def test_counts_are_written_once_though_a_key_is_damaged(
    member: Callable[..., Worker], client: redis.Redis
) -> None:
    """The counts are written before that of the leases of slots, which is damaged."""
    worker = member()
    add(worker, "a", "b")
    _spoil(client, key("busy"), "string")
    with pytest.raises(FrontierCorrupt, match="busy"):
        worker.exchange(1)
    assert count(client, "claimed") == 1


def test_what_another_run_has_left_hides_nothing(
    member: Callable[..., Worker], client: redis.Redis
) -> None:
    """Queues that nothing leads to any more are found by the next request for them: a crawl that
    was begun after somebody has deleted `ready` has all of its own requests."""
    worker = member()
    add(worker, "a", "b")
    client.delete(key("ready"))
    assert worker.exchange(10).complete  # type: ignore[union-attr]
    assert worker.leave()
    heir = member()
    assert heir.joined.new
    add(heir, "c")
    assert "c" in crawl(client, heir)


def test_it_is_said_that_requests_are_missing_though_the_last_worker_was_killed(
    member: Callable[..., Worker], client: redis.Redis
) -> None:
    """The next worker does not complete the run unseen: it comes into it, and finds what is
    missing."""
    worker = member()
    add(worker, "a", "b")
    (lease,) = worker.claim(1)
    client.delete(key("queue:host:0"))
    worker.finish(lease)
    worker.exchange()
    client.zadd(key("workers"), {worker.id: 1})
    heir = member()
    assert not heir.joined.new
    reply = ask(heir)
    assert (reply.complete, reply.created - reply.finished) == (True, 1)
    assert heir.leave()
    assert member().joined.new


def test_a_request_whose_deliveries_are_more_than_is_allowed_now(
    member: Callable[..., Worker], client: redis.Redis
) -> None:
    """REDISQ_MAX_DELIVERIES may be less when a crawl is resumed: the request is still one of ours,
    and so is not missing when the crawl is over."""
    worker = member()
    add(worker, "a")
    entry = client.lpop(key("queue:host:0"))
    client.lpush(key("queue:host:0"), b"\x06" + entry[1:])  # type: ignore[index]
    worker.claim(1)
    _die(client, worker)
    with Frontier.from_url(_url(client), NAME) as frontier:
        assert [letter.reason for letter in frontier.dead()] == ["deliveries"]
    reply = ask(member())
    assert (reply.complete, reply.created - reply.finished) == (True, 0)


@pytest.mark.parametrize("worker_id", [b"\xff\xfe", b"", b"ghost", b"x" * 1000])
def test_workers_of_another_hand(
    member: Callable[..., Worker], client: redis.Redis, worker_id: bytes
) -> None:
    """A name among the workers, dead or to live for ever, keeps no crawl from ending."""
    worker = member()
    add(worker, "a")
    leases = key("leases:").encode() + worker_id
    client.zadd(key("workers"), {worker_id: 1})
    client.hset(leases, "1.1", b"0:4:host\0\1b")  # type: ignore[arg-type]
    client.hset(leases, "x", b"broken")  # type: ignore[arg-type]
    with Frontier.from_url(_url(client), NAME) as frontier:
        assert len(frontier.status()["workers"]) == 2
    _reap(client, worker)
    client.zadd(key("workers"), {worker_id + b"2": 2**52})
    assert crawl(client, worker) == ["a", "b"]
    assert worker.leave()


def test_a_replay_that_others_have_bent(one_client: redis.Redis) -> None:
    """Neither a loop of many seconds nor the end of a worker: what it is told makes no sense, which
    is named, and it asks again."""
    worker = _maker(one_client)()
    add(worker, *"abcd")
    worker.exchange(2, lose="reply")
    bent = key(f"worker:{worker.id}")
    seq, first, last = cast(bytes, one_client.hget(bent, "claims")).split()
    call = worker.sessions[0].call()
    for far in (b"9" * 16, b"9" * 20, b"9" * 400):  # one more is the same number
        one_client.hset(bent, "claims", b"%s %s %s.1" % (seq, far, far))
        assert execute(one_client, call).leases == []
    one_client.hset(bent, "claims", b"%s %s 9007199254740991.1" % (seq, first))
    one_client.hset(bent, "duplicates", b"\xff")

    async def ask_again() -> None:
        async with redis.asyncio.Redis.from_url(_url(one_client)) as client:
            with pytest.raises(FrontierCorrupt, match="makes no sense"):
                await execute_async(client, call)

    asyncio.run(ask_again())
    one_client.hset(bent, mapping={"claims": b"%s %s %s" % (seq, first, last), "duplicates": ""})
    assert len(ask(worker, 0).leases) == 2


def test_leases_that_the_worker_knows_nothing_of(
    member: Callable[..., Worker], client: redis.Redis
) -> None:
    """They are nobody's work while it lives: it would wait for them for ever. A request among them
    is fetched, the rest are dead letters; what it does know of stays with it."""
    worker = member()
    add(worker, "a", "b")
    worker.claim(1)
    leases = key(f"leases:{worker.id}")
    client.hset(leases, mapping={"1.1": b"0:4:host\0\1c", "x": b"broken", "": b""})
    assert [lease.entry[1:] for lease in worker.claim(5)] == [b"b"]
    assert client.hlen(leases) == 5
    for _, lease in list(worker.holding.values()):
        worker.finish(lease)
    assert crawl(client, worker) == ["c"]
    assert count(client, "dead") == 2
    assert worker.leave()


@pytest.mark.parametrize("shards", ["1000000000", "-1", "x", "1e999"])
@pytest.mark.parametrize("field", ["shards", "config:shards"])
def test_shards_of_another_hand(one_client: redis.Redis, field: str, shards: str) -> None:
    """Nobody makes or looks for millions of them, and a reset leaves nothing."""
    client, worker = one_client, _maker(one_client)()
    add(worker, "a")
    client.zadd(key("workers"), {worker.id: 1})
    client.hset(key("meta"), field, shards)
    with Frontier.from_url(_url(client), NAME) as frontier:
        if field == "config:shards":
            with pytest.raises(FrontierCorrupt, match="field config:"):
                frontier.push(["http://host/"])
        else:
            assert frontier.push(["http://host/"]).accepted == 1
            joined = _maker(client)().joined
            assert len(list(_steps(client, runs.sweep(NAME, joined)))) < 1_000
        assert len(client.keys("*:meta")) == 1  # type: ignore[arg-type]
        frontier.reset(force=True)
    assert client.keys("*") == []


@pytest.mark.parametrize("value", ["x", "1e999", "-nan", ""])
@pytest.mark.parametrize("name", ["began", "ended", "left", "visited", "sign", "patient", "behind"])
def test_times_of_another_hand(one_client: redis.Redis, name: str, value: str) -> None:
    """A time in meta that is none is as none: runs end and begin."""
    client, member = one_client, _maker(one_client)
    for _ in range(2):
        worker = member()
        client.hset(key("meta"), name, value)
        add(worker, "a")
        assert crawl(client, worker) == ["a"]
        client.hset(key("meta"), name, value)
        assert worker.leave()
        client.hset(key("meta"), name, value)
    anew = Worker(client, NAME, EXACT, terms=calls.RunTerms(resume=False, keep_seen=True))
    assert anew.joined.new


BENT = ["x", "nan", "inf", "-inf", "1e300", "-5", "1.5", "0x10", "9007199254740991"]
"""What others may write in the place of a number."""


NUMBERS_OF_A_SLOT = "last tat ends out parked fails failed told robots throttle held own"


BENT_OF_A_SLOT = sorted({*NUMBERS_OF_A_SLOT.split()} - {"robots"})
"""A delay without end is one: what a person has written there, a person takes back."""


@pytest.mark.parametrize("name", [*BENT_OF_A_SLOT, "tokens", "limits"])
def test_what_is_known_of_a_slot_is_bent(one_client: redis.Redis, name: str) -> None:
    """No number of another hand stops an exchange half-way, or a slot for ever; what a person may
    have said, a person takes back."""
    client = one_client
    for value, limit in zip(BENT, itertools.cycle(["200 0 1 0", "0 0 1 2", "0 100 3 0"])):
        client.flushall()
        worker = Worker(client, NAME, EXACT, limits={"*": limit})
        add(worker, *"abcdef")
        worker.exchange(1, turns=[])
        bent = {
            "tokens": (key(f"tokens:{worker.id}"), "host", value),
            "limits": (key("limits"), "host", f"{value} 1 0 1"),
        }
        client.hset(*bent.get(name, (key("slot:host"), name, value)))
        turn = TurnReport("host", 1_000, -5, 1, 0, 1)
        outcomes = worker.sessions[0].outgoing.download_results
        outcomes.append(DownloadResult("host", 503, time.monotonic(), failed=True))
        for _ in range(2):
            assert ask(worker, 1, [turn]).status == "ok"
            outcomes.append(DownloadResult("host", 200, time.monotonic(), failed=False))
        execute(client, admin.list_slots(NAME, 0, names=["host"]))
        execute(client, admin.resume(NAME, 0, "host"))
        execute(client, admin.limit(NAME, 0, "host", "0 0 1 0"))
        for _, lease in list(worker.holding.values()):
            worker.finish(lease)
        client.hdel(key("slot:host"), "parked")
        ask(worker, 0, [TurnReport("host", -1, -1, 0, 1, 0)])  # its downloads have ended
        crawl(client, worker)
        assert count(client, "finished") == count(client, "created") == 6, (value, limit)


@pytest.mark.parametrize("value", BENT)
@pytest.mark.parametrize("name", ["throttle", "retry", "stuck", "limited"])
def test_what_all_slots_share_is_bent(one_client: redis.Redis, name: str, value: str) -> None:
    """A crawl with limits goes on to its end."""
    worker = Worker(one_client, NAME, EXACT, limits={"*": "0 0 1 2"})
    add(worker, *"abc")
    one_client.hset(key("meta"), name, value)
    outcome = DownloadResult("host", 200, time.monotonic(), failed=False, latency=0.1)
    worker.sessions[0].outgoing.download_results.append(outcome)
    assert crawl(one_client, worker) == ["a", "b", "c"]
    assert worker.leave()


@pytest.mark.parametrize("value", ["x", "nan", "inf", "999", ""])
def test_the_number_of_an_exchange_is_bent(one_client: redis.Redis, value: str) -> None:
    """Nothing is taken for applied that was not: the worker goes on as a new one."""
    worker = _maker(one_client)()
    add(worker, *"abc")
    (lease,) = worker.claim(1)
    worker.finish(lease)
    worker.enqueue("d", entry=ENTRY % b"d")
    one_client.hset(key(f"worker:{worker.id}"), "seq", value)
    worker.exchange()
    assert worker.rejoins == 1
    assert crawl(one_client, worker) == ["a", "b", "c", "d"]


NUMBERS_OF_SEEN = {
    "exact": "first width position count buckets dropped",
    "bitmap": "layers newest total dropped",
    "redisbloom": "filters rate unit room capacity total",
}


@pytest.mark.servers("ends")
@pytest.mark.parametrize("backend", NUMBERS_OF_SEEN)
def test_a_dupefilter_is_bent(client: redis.Redis, backend: str) -> None:
    """No number of one keeps Redis from answering. An exchange is applied, or the filter's key is
    named and nothing is lost when that is deleted; a reset ends."""
    if backend == "redisbloom" and not probe(client):
        pytest.skip("a server without RedisBloom")
    dupefilter = "exact" if backend == "exact" else "bloom"
    config = dataclasses.replace(EXACT, backend=backend, dupefilter=dupefilter, capacity=1_000)
    for field, value in itertools.product(NUMBERS_OF_SEEN[backend].split(), BENT):
        client.flushall()
        worker = Worker(client, NAME, config)
        add(worker, *(f"first{n}" for n in range(40)))
        seen, run = key(f"seen:{worker.joined.run}"), worker.joined.run
        asked = admin.seen_status(NAME, 0, run, worker.seen)
        layer = "1000 31 4 900 1e-6 1"
        for bent in [value, f"{layer};" * 9_999, layer.replace("31", value)][: _variants(field)]:
            client.hset(seen, field, bent)
            for number in range(300):
                worker.enqueue(f"{bent[:9]}{number}", entry=ENTRY % b"x")
            with contextlib.suppress(FrontierCorrupt):
                execute(client, asked)
            try:
                worker.exchange()
            except FrontierCorrupt as error:
                assert seen in str(error)
                client.delete(seen, f"{seen}:1")
                execute(client, admin.mend(NAME, 0))
                worker.exchange()
        assert count(client, "dead") == 0
        assert _queued(client) == 40 + 300 * _variants(field)
        client.hset(seen, field, value)
        steps = runs.reset(NAME, [0], force=True)
        assert len(list(itertools.islice(_steps(client, steps), 200))) < 200
        assert not client.exists(key("meta"), seen)


def _variants(field: str) -> int:
    return 3 if field == "layers" else 1


@pytest.mark.parametrize("field", ["ttl", "claims", "starting", "waiting", "duplicates"])
def test_a_dead_workers_record_is_bent(one_client: redis.Redis, field: str) -> None:
    """The run of which it was the last worker is complete all the same."""
    for value in BENT:
        worker = _maker(one_client)()
        add(worker, "a")
        assert crawl(one_client, worker) == ["a"]
        one_client.zadd(key("workers"), {worker.id: 1})
        one_client.hset(key(f"worker:{worker.id}"), field, value)
        assert worker.conclude(), value


def test_a_dupefilter_that_nobody_knows(one_client: redis.Redis) -> None:
    """It is named, and no file is looked for."""
    _maker(one_client)()
    one_client.hset(key("meta"), "config:backend", "../x")
    with pytest.raises(FrontierCorrupt, match=re.escape("'../x'")):
        _maker(one_client)()


def test_counts_of_another_hand_while_the_end_is_looked_for(one_client: redis.Redis) -> None:
    """Whether anything is left does not depend on them."""
    worker = _maker(one_client)(shards=2)
    one_client.hset(key("counts"), mapping={"created": "x", "requeued": "nan"})
    worker.exchange_all()
    assert worker.do(runs.is_idle(NAME, range(2)))


def test_broken_letters(member: Callable[..., Worker], client: redis.Redis) -> None:
    """They are shown as what they are, and hide no others."""
    worker = member()
    add(worker, "a")
    (lease,) = worker.claim(1)
    worker.finish(lease, "dead", reason="test")
    worker.exchange()
    broken = [b"", b"x", b"\xff\xff\xff\xff", b"\0\0\0\3abcd", b"\0\0\0\1\x80entry"]
    for n, letter in enumerate(broken, start=10):
        client.hset(key("letters"), str(n), letter)  # type: ignore[arg-type]
        client.zadd(key("dead"), {str(n): n})
    with Frontier.from_url(_url(client), NAME) as frontier:
        reasons = [letter.reason for letter in frontier.dead()]
        assert reasons == ["foreign"] * len(broken) + ["test"]
        assert frontier.requeue() == 1
        assert frontier.purge(reason="foreign") == len(broken)
    assert crawl(client, worker) == ["a"]


def test_counts_that_were_set_back(member: Callable[..., Worker], client: redis.Redis) -> None:
    """No dead letter takes the place of another."""
    worker = member()
    for url in "abc":
        add(worker, url)
        (lease,) = worker.claim(1)
        client.delete(key("counts"))
        worker.finish(lease, "dead", reason="test")
        worker.exchange()
    assert client.hlen(key("letters")) == client.zcard(key("dead")) == 3


def _all_but_heartbeat(client: redis.Redis) -> dict[Any, Any]:
    found: list[Any] = client.keys("*")
    return {name: client.dump(name) for name in found if not name.endswith(b":workers")}


def _queued(client: redis.Redis) -> int:
    found: list[Any] = client.keys("*queue:*")
    return sum(int(client.llen(name)) for name in found)  # type: ignore[arg-type]


def _die(client: redis.Redis, worker: Worker) -> None:
    client.zadd(key("workers"), {worker.id: 1}, xx=True)
    _reap(client, worker)


def _reap(client: redis.Redis, worker: Worker) -> None:
    client.delete(key("reaped"))
    execute(client, calls.reap(NAME, 0, worker.joined.run, 5, 1_000))


def _url(client: redis.Redis) -> str:
    return f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}"


def test_many_priorities_of_a_slot(client: redis.Redis) -> None:
    """A slot with tens of thousands of them is shown and reset in steps that are bounded."""
    most, levels = 1_200, 20_000
    worker = Worker(client, NAME, EXACT)
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


def test_slots_of_many_priorities_are_listed_in_portions(redis_server: RedisServer) -> None:
    """One call looks at 10,000 queues at most, and says what there is at least."""
    with redis_server.client() as client:
        Worker(client, NAME, EXACT)
        pipeline = client.pipeline(transaction=False)
        for slot in map(str, range(150)):
            for n in range(100):
                pipeline.rpush(key(f"queue:{slot}:{n}"), "x", "y")
            pipeline.zadd(key(f"levels:{slot}"), {str(n): -n for n in range(100)})
            pipeline.zadd(key("ready"), {slot: 1})
        pipeline.execute()
        before = client.info("commandstats").get("cmdstat_llen", {}).get("calls", 0)
        names = [str(n) for n in range(150)]
        _, records = execute(client, admin.list_slots(NAME, 0, names=names))
        looked_at = client.info("commandstats")["cmdstat_llen"]["calls"] - before
        assert looked_at <= 10_000
        assert {record[1] for record in records} == {2 * 66 + 34}
        _, ((_, queued, *_),) = execute(client, admin.list_slots(NAME, 0, names=["7"]))
        assert queued == 200


def test_large_entries_come_in_portions(client: redis.Redis) -> None:
    """Of entries of a megabyte a reply brings some; so does one that is repeated, and a look at
    dead letters."""
    worker = Worker(client, NAME, EXACT)
    client.rpush(key("queue:host:0"), *[b"\0\1" + b"x" * 1_000_000] * 90)
    client.zadd(key("levels:host"), {"0": 0})
    client.zadd(key("ready"), {"host": 1})
    worker.exchange(90, lose="reply")
    first = worker.claim(90)
    assert 4 <= len(first) <= 25
    while leases := worker.claim(90):
        assert len(leases) <= 25
    assert len(worker.holding) == 90
    worker.exchange(1, lose="reply")
    assert worker.claim(0) == []
    for _, lease in list(worker.holding.values())[:20]:
        worker.finish(lease, "dead", reason="test")
    worker.exchange()
    with Frontier.from_url(_url(client), NAME) as frontier:
        assert len(list(frontier.dead())) == 20
        assert len(execute(client, admin.letters(NAME, 0, most=100)).letters) <= 5
        assert frontier.requeue() == 20
    steps = 0
    while execute(client, calls.leave(NAME, 0, worker.joined.run, worker.id)):
        steps += 1
    assert steps > 10
    assert client.llen(key("queue:host:0")) == 90
