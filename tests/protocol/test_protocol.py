"""The frontier protocol, one promise at a time, on every kind of server.

What happens when everything goes wrong at once is in the simulation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from lab.servers import full, wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import ConfigurationMismatch, FrontierError
from scrapy_redisq.frontier import admin, calls
from scrapy_redisq.frontier.calls import RunTerms
from scrapy_redisq.frontier.config import FORMAT, FrontierConfig
from scrapy_redisq.frontier.names import wake_channel
from scrapy_redisq.frontier.operations import Lease
from scrapy_redisq.frontier.outgoing import MAX_BYTES, MAX_OPERATIONS
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.frontier.shard_session import MAX_CLAIMS
from scrapy_redisq.frontier.shards import shard_of
from tests.harness.shard import read_shard
from tests.harness.worker import (
    EXACT,
    NAME,
    Worker,
    as_stored,
    ask,
    demand_for,
    die,
    expire,
    key,
    member,
    now,
    reap,
    url_of,
)


def entries(leases: list[Lease]) -> list[str]:
    return [lease.entry.decode() for lease in leases]


def counts(client: redis.Redis) -> dict[str, int]:
    real = read_shard(client, NAME, 0)
    real.check()
    return {name: real.count(name) for name in [*real.counts, "stale", "duplicates", "dead"]}


# --- order -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "ahead"), [("fifo", 0), ("lifo", 3_000_000)])
def test_a_lost_reply_is_told_again_as_it_was(client: redis.Redis, order: str, ahead: int) -> None:
    """In its order, and without the leases of former exchanges, which may be many and large, and of
    a time that is ahead, as the clock went back."""
    worker = member(client, order=order)
    for n in range(100):
        worker.enqueue(f"{n:03}")
    assert len(worker.claim(40)) == 40
    held: Any = client.hgetall(leases := key(f"leases:{worker.id}"))
    client.delete(leases)
    for lease, record in held.items():
        number, _, time = lease.decode().partition(".")
        client.hset(leases, f"{number}.{int(time) + ahead}", record)
    worker.exchange(60, lose="reply")
    session = worker.sessions[0]
    reply = execute(worker.client, session.call(60, demand_for(60)))
    assert reply.status == "replayed"
    urls = [f"{n:03}" for n in range(100)]
    assert entries(reply.leases) == (urls if order == "fifo" else urls[::-1])[40:]


def test_priority_scheduling_is_strict_over_all(client: redis.Redis) -> None:
    """With scheduling "priority" the slot does not matter."""
    worker = member(client, scheduling="priority")
    for n in range(12):
        worker.enqueue(f"{n % 4}.{n}", slot=f"host{n % 3}", priority=n % 4)
    worker.exchange()
    got = entries(worker.claim(12))
    assert got == [f"{priority}.{n}" for priority in (3, 2, 1, 0) for n in range(priority, 12, 4)]


# --- slots -------------------------------------------------------------------------------------


def test_least_recently_claimed_slot_first(client: redis.Redis) -> None:
    """Slots take turns, whatever the number of their requests and whoever claims."""
    one, two = member(client), member(client)
    for n in range(3):
        for slot in "abc":
            one.enqueue(f"{slot}{n}", slot=slot)
        one.exchange()  # later than the first slots became ready
    got = [entries((one, two)[n % 2].claim(1))[0] for n in range(9)]
    assert got == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_equal_shares_then_the_rest(worker: Worker) -> None:
    """Each slot gives an equal share; what small slots leave comes from the large ones."""
    for slot, n in (("a", 50), ("b", 2), ("c", 50)):
        worker.send([f"{slot}{i}" for i in range(n)], slot=slot)
    shares = Counter(lease.slot for lease in worker.claim(30))
    assert shares["b"] == 2
    assert shares["a"] + shares["c"] == 28
    assert abs(shares["a"] - shares["c"]) <= 4


def test_strange_slots(client: redis.Redis, worker: Worker) -> None:
    """A slot may be any text: empty, with the separators of keys and records, not ASCII."""
    slots = ["", ":", "1:2:", "a:1", "a", "host:8080", "ü", "{x}", "-1:3:abc", "[::1]"]
    for slot in slots:
        for priority in (1, -1):
            worker.enqueue(f"{slot} {priority}", slot=slot, priority=priority)
    worker.exchange()
    first = worker.claim(100)
    assert sorted((lease.slot, lease.priority, lease.entry.decode()) for lease in first) == sorted(
        (slot, priority, f"{slot} {priority}") for slot in slots for priority in (1, -1)
    )
    for lease in first:
        worker.finish(lease, "retried", entry=lease.entry, priority=lease.priority, delay=1)
    wait_until(lambda: worker.claim(100) and len(worker.holding) == 20, 20, "all came back")
    die(client, worker)
    assert counts(client)["reclaimed"] == 20


# --- one batch ---------------------------------------------------------------------------------


def test_limits_of_a_batch(worker: Worker) -> None:
    """An exchange carries a bounded number of operations, bytes and claims, in their order."""
    for n in range(MAX_OPERATIONS + 5):
        worker.enqueue(f"{n}")
    reply = ask(worker, 1_000)
    assert len(reply.accepted) == MAX_OPERATIONS
    assert len(reply.leases) == MAX_CLAIMS
    assert worker.waiting() == 5
    worker.exchange()
    assert worker.waiting() == 0
    for n in range(3):
        worker.enqueue(f"large {n}", entry=bytes(MAX_BYTES // 2 + 1))
    for left in (2, 1, 0):
        worker.exchange()
        assert worker.waiting() == left
    for lease in worker.claim(3):
        worker.finish(lease, "retried", entry=bytes(MAX_BYTES // 2 + 1))
    for left in (2, 1, 0):
        worker.exchange()
        assert worker.waiting() == left


def test_who_waits_is_woken(client: redis.Redis) -> None:
    """By what is enqueued, and by the end of the last request: an idle worker asks seldom."""
    worker, idle = member(client), member(client)

    def woken_by(step: Callable[[], object]) -> bool:
        assert idle.claim(5) == []
        with client.pubsub() as channel:
            channel.subscribe(wake_channel(NAME, 0))
            assert channel.get_message(timeout=5)["type"] == "subscribe"
            step()
            client.publish(wake_channel(NAME, 0), "that was all")
            message = wait_until(lambda: channel.get_message(timeout=1), 10, "a message")
            return bool(message["data"] != b"that was all")

    worker.enqueue("a")
    assert woken_by(lambda: worker.exchange(1))
    ((_, lease),) = worker.holding.values()
    assert not woken_by(worker.exchange)
    worker.finish(lease)
    assert woken_by(worker.exchange)


# --- leases ------------------------------------------------------------------------------------


def test_nobody_is_dead_because_redis_was_away(client: redis.Redis) -> None:
    """After an outage longer than the TTL the others get time to come back, whoever is the first to
    come: one that was there before, or one that has just joined and knows of nothing."""
    ttl = 2.0
    workers = [Worker(client, NAME, EXACT, ttl=ttl) for _ in range(3)]
    workers[0].send([f"{n}" for n in range(9)])
    for worker in workers:
        worker.claim(3)
    for first in ("new", "old"):
        # What an outage of a minute leaves: deadlines that have passed, and an old sign of life.
        client.zadd(key("workers"), {worker.id: 1 for worker in workers}, xx=True)
        client.hset(key("meta"), "sign", now(client) - 60_000_000)
        early = Worker(client, NAME, EXACT, ttl=ttl) if first == "new" else workers.pop(0)
        assert 0 < ask(early, 0).overdue_in <= ttl / 2 * 1000
        workers.append(early)
        for worker in workers:
            assert ask(worker, 0).overdue_in > 0
    assert counts(client)["leased"] == 9
    # One of them does not come back. Exchanges a quarter of a TTL apart are no outage.
    expire(client, workers.pop(1))
    reply = wait_until(lambda: (got := ask(workers[0], 0)).overdue_in == 0 and got, 20, "dead")
    assert reply
    assert reap(client, workers[0])[0] == 3


def test_reaping_many(client: redis.Redis) -> None:
    """A call reclaims at most 100 leases; the rest stays fenced off until the next. Deaths are
    counted: a request that was with so many workers that died is a dead letter."""
    dead, heir = member(client), member(client)
    dead.send([f"{n}" for n in range(250)])
    while dead.claim(100):
        pass
    assert die(client, dead) == (100, 0, 150)
    dead.exchange(lose="reply")
    assert len(read_shard(client, NAME, 0).leases[dead.id]) == 150
    assert reap(client, heir) == (100, 0, 50)
    assert reap(client, heir) == (50, 0, 0)
    assert reap(client, heir) == (0, 0, 0)
    assert counts(client)["reclaimed"] == 250
    got = [lease for _ in range(3) for lease in heir.claim(100)]
    assert sorted(entries(got)) == sorted(str(n) for n in range(250))
    assert {lease.deliveries for lease in got} == {1}
    expire(client, heir)
    assert reap(client, member(client), deliveries=2) == (0, 100, 150), "the second worker died"


def test_leaving_with_many(client: redis.Redis) -> None:
    """A worker that leaves is not taken for dead between its calls; what a late exchange of it
    claims then goes back with the next call. One that comes later still is refused."""
    leaver, other = member(client), member(client)
    leaver.send([f"{n}" for n in range(250)])
    while leaver.claim(100):
        pass
    leave = calls.leave(NAME, 0, leaver.joined.run, leaver.id)
    late = leaver.sessions[0].call(10, demand_for(10))
    assert execute(client, leave) == 150
    assert reap(client, other, deliveries=1) == (0, 0, 0)
    assert len(execute(client, late).leases) == 10
    assert [execute(client, leave), execute(client, leave)] == [60, 0]
    assert execute(client, late).status == "gone"
    assert [lease.deliveries for _ in range(3) for lease in other.claim(100)] == [0] * 250


def test_a_server_that_has_lost_the_end_of_its_log(client: redis.Redis) -> None:
    """Whoever has had an answer that it does not know of joins anew. What was finished since is
    fetched again; what no page asks for again is sent again, and what is on its way is not lost."""
    worker, other = member(client), member(client)
    worker.send(["a", "b"])
    found: Any = client.keys("*")
    before = {name: client.dump(name) for name in found}
    (page,) = worker.claim(1)
    worker.enqueue("link", page=page)
    worker.enqueue("idle", filtered=False, identity=b"1" * 16, asked=calls.RECENT)
    worker.finish(page)
    worker.exchange()
    (there,) = other.claim(1)
    client.flushall()
    for name, value in before.items():
        client.restore(name, 0, value)  # type: ignore[arg-type]
    worker.enqueue("later")
    other.finish(there)
    for each in (worker, other):
        each.exchange()
        each.exchange()
        assert each.rejoins == 1
    assert sorted(entries(worker.claim(9))) == ["a", "b", "idle", "later"]
    assert counts(client)["created"] == 4


def test_a_budget_that_is_raised(client: redis.Redis) -> None:
    """Requests over it do not count, so that a larger one has room; and they drop no dead letters
    of failures."""
    worker = Worker(client, NAME, EXACT, limits={"*": "0 0 1 0 3"}, dead_max=2)
    worker.send(["failed"])
    (lease,) = worker.claim(1)
    worker.finish(lease, "dead", reason="download")
    worker.exchange()
    worker.send([f"{n}" for n in range(9)])
    assert entries(worker.claim(9)) == ["0", "1"]
    with Frontier.from_url(url_of(client), NAME) as frontier:
        assert [letter.reason for letter in frontier.dead()] == ["budget", "download"]
    assert counts(client)["dead"] == 8
    other = Worker(client, NAME, EXACT, limits={"*": "0 0 1 0 5"})
    other.send([f"more {n}" for n in range(9)])
    assert entries(other.claim(9)) == ["more 0", "more 1"]


def test_links_to_a_start_request_are_duplicates(worker: Worker) -> None:
    """Though it was not filtered itself."""
    worker.send(["start"], filtered=False, identity=b"1" * 16, asked=calls.STARTS, also=True)
    assert not worker.send(["start"]).accepted


# --- runs --------------------------------------------------------------------------------------


def finish_all(worker: Worker) -> None:
    while leases := worker.claim(100):
        for lease in leases:
            worker.finish(lease)
    worker.exchange_all()


def test_the_last_one_completes_the_run(client: redis.Redis) -> None:
    """Complete is when all is finished, also what is delayed, and nobody starts; the last to leave
    says so."""
    first, second = member(client), member(client)
    first.send(["a"])
    finish_all(first)
    assert not first.complete, "the second may still have start requests"
    second.send(["later"], delay=3_600_000)
    first.exchange()
    assert not first.complete
    for waiting, _ in client.zscan_iter(key("delayed")):
        client.zadd(key("delayed"), {waiting: 1})
    finish_all(first)
    second.exchange()
    assert first.complete
    assert not first.leave()
    assert second.leave()


def test_another_backend_after_a_crawl(client: redis.Redis) -> None:
    """A filter of another kind is swept by the script that knows it."""
    first = member(client, dupefilter="bloom", backend="bitmap", capacity=1_000)
    first.send(["a"])
    finish_all(first)
    assert first.leave()
    member(client)
    assert execute(client, calls.sweep(NAME, 0, "exact")) == "bitmap"
    backend: str | None = "bitmap"
    while backend:
        backend = execute(client, calls.sweep(NAME, 0, backend))
    assert read_shard(client, NAME, 0).generations == set()


# --- who may join ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ("DUPEFILTER_CLASS", {"dupefilter": "bloom"}),
        ("REDISQ_SHARDS", {"shards": 2}),
        ("REDISQ_DUPEFILTER_ERROR_RATE", {"error_rate": 1e-3}),
        ("the spider", {"spider": "films"}),
    ],
)
def test_another_configuration(client: redis.Redis, setting: str, change: dict[str, Any]) -> None:
    """Whoever comes with another configuration is told what differs; the others go on."""
    first = Worker(client, NAME, EXACT)
    before = client.hgetall(key("meta"))
    with pytest.raises(ConfigurationMismatch, match=setting) as raised:
        Worker(client, NAME, replace(EXACT, **change))
    (field,) = change
    stored, given = raised.value.differences[setting]
    assert (stored, given) == (str(getattr(EXACT, field)), str(change[field]))
    assert len(raised.value.differences) == 1
    assert client.hgetall(key("meta")) == before
    assert first.send(["a"]).status == "ok"


def with_arguments(text: str, **options: Any) -> FrontierConfig:
    return replace(EXACT, arguments=text, **options)


UK, DE, NONE = "00000001 site=uk", "00000002 site=de", "00000000 "


def test_other_arguments_are_refused_by_a_message_that_shows_both(client: redis.Redis) -> None:
    """Also none where there were some. What would go on with the run, and what would be a crawl of
    its own, is in the message (F69)."""
    config = with_arguments(UK, shards=2)
    worker = Worker(client, NAME, config)
    for given, shown in ((DE, "'site=de'"), (NONE, "'none'")):
        with pytest.raises(ConfigurationMismatch) as raised:
            Worker(client, NAME, with_arguments(given, shards=2))
        for part in ("'site=uk'", shown, f"-s REDISQ_FRONTIER={NAME}", "REDISQ_SAME_ARGUMENTS"):
            assert part in str(raised.value)
    masked = "00000003 token=***", "00000004 token=***"
    Worker(client, "masked", with_arguments(masked[0]))
    with pytest.raises(ConfigurationMismatch, match=r"00000003.*00000004"):
        Worker(client, "masked", with_arguments(masked[1]))
    assert Worker(client, NAME, config).joined.run == worker.joined.run


def test_where_arguments_are_not_compared(client: redis.Redis) -> None:
    """A run that a producer has begun takes those of its first worker. Workers that allow others,
    or do not know theirs, join; another run may have others, also one with what was seen."""
    Worker(client, NAME, EXACT)
    first = Worker(client, NAME, with_arguments(UK))
    assert first.joined.config.arguments == UK
    with pytest.raises(ConfigurationMismatch):
        Worker(client, NAME, with_arguments(DE))
    assert Worker(client, NAME, EXACT).joined.config.arguments == UK
    execute(client, calls.clear(NAME, 0, everything=True, mark=True, force=True))
    keeps = RunTerms(keep_seen=True)
    for arguments in (UK, DE, NONE):
        worker = Worker(client, NAME, with_arguments(arguments), terms=keeps)
        assert worker.joined.new
        assert worker.joined.config.arguments == arguments
        worker.exchange_all()
        assert worker.leave()
    pushed = calls.join(NAME, 0, calls.produce("pushed", keep_config=True), EXACT)
    assert execute(client, pushed).config.arguments == ""


def test_what_may_differ(client: redis.Redis) -> None:
    """A producer knows no spider; the backend is what the run was begun with."""
    producer = Worker(client, NAME, replace(EXACT, spider="", backend="bitmap"))
    worker = Worker(client, NAME, EXACT)
    assert worker.joined.config.backend == "bitmap"
    assert worker.joined.config.spider == "books"
    assert worker.send(["a"]).accepted
    assert not producer.send(["a"]).accepted


def test_a_newer_format(client: redis.Redis) -> None:
    """A frontier of another release is left alone."""
    member(client)
    client.hset(key("meta"), "format", FORMAT + 1)
    before = client.hgetall(key("meta"))
    with pytest.raises(FrontierError, match=rf"format {FORMAT + 1}.*reads format {FORMAT}"):
        member(client)
    assert client.hgetall(key("meta")) == before


# --- a full server -----------------------------------------------------------------------------


@pytest.mark.servers("ends")
def test_at_maxmemory(client: redis.Redis) -> None:
    """Nothing in an exchange is refused: it says that the server is full, and takes links, start
    requests and ends of all kinds. So does a join. A worker can leave, and people can reset it."""
    worker, dead = member(client), member(client)
    assert not worker.send([f"{n}" for n in range(9)]).full
    dead.claim(2)
    leases = worker.claim(5)
    expire(client, dead)
    with full(client):
        worker.enqueue("link", page=leases[0])
        worker.enqueue("seed", filtered=False, identity=b"1" * 16, asked=calls.STARTS)
        endings = ("done", "released", "retried", "dead", "backed_off")
        for outcome, lease in zip(endings, leases, strict=True):
            worker.finish(lease, outcome, entry=b"again", delay=3_600_000, reason="test")
        reply = worker.exchange(1, lose="reply") or worker.exchange(1)
        assert reply is not None
        assert (reply.full, len(reply.accepted), len(reply.leases)) == (True, 2, 1)
        assert worker.waiting() == 0
        assert counts(client)["finished"] == 3
        assert reap(client, worker) == (2, 0, 0)
        assert execute(client, admin.requeue(NAME, 0, as_stored(client))) == 1
        assert member(client).joined.full
    assert not worker.send(["more"]).full
    assert not member(client).joined.full
    with full(client):
        worker.leave()
        assert worker.id not in read_shard(client, NAME, 0).workers
        with Frontier.from_url(url_of(client), NAME) as frontier:
            frontier.reset(force=True)
        assert client.keys("*") == []


# --- several shards ----------------------------------------------------------------------------


def test_shard_of() -> None:
    """Hosts are spread evenly, and alike by everybody: the numbers are part of the format."""
    assert [shard_of(f"host{n}.example", 4) for n in range(8)] == [3, 0, 1, 2, 3, 0, 1, 2]
    spread = Counter(shard_of(f"www{n}.example", 4) for n in range(4_000))
    assert set(spread) == {0, 1, 2, 3}
    assert all(850 < n < 1_150 for n in spread.values())
    assert {shard_of(f"{n}", 1) for n in range(50)} == {0}
