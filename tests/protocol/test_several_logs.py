"""Three servers, each with a shard and a log of its own: what may be lost of one of them alone.

What happens when everything goes wrong at once is in the simulation, of which some seeds have a
cluster.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from msgspec.structs import replace

from lab.sentinels import in_step
from lab.servers import RedisServer, any_server, wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import ShardLost
from scrapy_redisq.frontier import calls, resend, runs, shard_session
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.frontier.operations import Lease
from scrapy_redisq.frontier.scripts import execute, execute_and_wait
from scrapy_redisq.frontier.terms import Terms
from scrapy_redisq.server.connection import open_server
from tests.harness.worker import EXACT, Clock, Worker
from tests.protocol.test_runs import in_turn

NAME = "books6"
"""Of several names the first whose shards are called 0, 1 and 2 also on several servers."""

HOSTS = ["a", "ü", "x:80"]
"""One of each shard."""

CONFIG = replace(EXACT, shards=3, spread=True)

Keys = dict[bytes, bytes]


class Servers:
    """A client of several servers: what it is told goes to the server of the key's shard.

    What was acknowledged becomes safe when a test moves ``clock`` on.
    """

    def __init__(self, clients: Sequence[redis.Redis], clock: Clock) -> None:
        self.clients = clients
        self.clock = clock

    def member(self, **options: Any) -> Worker:
        client: Any = self
        return Worker(client, NAME, CONFIG, **options)

    def of(self, key: str) -> redis.Redis:
        return self.clients[int(key.split("}", maxsplit=1)[0].rpartition(":")[2])]

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        return self.of(keys_and_args[0]).evalsha(sha, numkeys, *keys_and_args)

    def eval(self, script: str, numkeys: int, *keys_and_args: Any) -> Any:
        return self.of(keys_and_args[0]).eval(script, numkeys, *keys_and_args)

    def keys(self, shard: int) -> Keys:
        """All that a server has."""
        client = self.clients[shard]
        found: Any = client.keys("*")
        return {key: client.dump(key) for key in found}  # type: ignore[misc]

    def lose(self, shard: int, keys: Keys) -> None:
        """The server has lost what came after it had these ``keys``."""
        self.clients[shard].flushall()
        for key, value in keys.items():
            self.clients[shard].restore(key, 0, value)

    def posts(self, shard: int) -> int:
        return int(self.clients[shard].zcard(key_prefix(NAME, shard) + "post"))  # type: ignore[arg-type]

    def posts_are_due(self, shard: int) -> None:
        key = key_prefix(NAME, shard) + "post"
        for id in self.clients[shard].zrange(key, 0, -1):  # type: ignore[union-attr]
            self.clients[shard].zadd(key, {id: 1})


@pytest.fixture(scope="module")
def three_clients() -> Iterator[list[redis.Redis]]:
    started = [RedisServer(any_server()) for _ in range(3)]
    clients = [server.client() for server in started]
    yield clients
    for client, server in zip(clients, started, strict=True):
        client.close()
        server.close()


@pytest.fixture
def servers(three_clients: list[redis.Redis], monkeypatch: pytest.MonkeyPatch) -> Servers:
    for client in three_clients:
        client.flushall()
    clock = Clock()
    for module in (shard_session, resend):
        monkeypatch.setattr(module, "time", clock)
    return Servers(three_clients, clock)


def page(worker: Worker) -> Lease:
    """A page of shard 0, which it has begun, and which is safe."""
    worker.enqueue("page", slot=HOSTS[0])
    worker.exchange()
    (lease,) = worker.claim(1)
    return lease


def link(worker: Worker, lease: Lease | None, url: str = "link", shard: int = 1) -> None:
    """The page, or start() with None, asks for a page of another shard, which hears of it."""
    worker.enqueue(url, slot=HOSTS[shard], page=lease)
    worker.exchange(shard=shard)


def leave_a_post(servers: Servers, worker: Worker) -> Keys:
    """A page ends that has asked for one of shard 1. -> what that had before."""
    lease = page(worker)
    before = servers.keys(1)
    link(worker, lease)
    worker.finish(lease)
    worker.exchange()
    assert servers.posts(0) == 1
    return before


def fetched(worker: Worker, shard: int = 1) -> list[str]:
    return [lease.entry.decode() for lease in worker.claim(10, shard=shard)]


def die(servers: Servers, worker: Worker) -> None:
    """It is never heard of again, and others know it."""
    for session in worker.sessions:
        prefix = key_prefix(NAME, session.shard)
        servers.clients[session.shard].zadd(prefix + "workers", {session.worker_id: 1}, xx=True)
        call = calls.reap(NAME, session.shard, session.run_id, 5, 1_000)
        execute(servers, call)


def test_a_post_goes_when_its_links_are_safe(servers: Servers) -> None:
    """Not by the time that has passed: the server must have said since that it has lost nothing."""
    worker = servers.member()
    lease = page(worker)
    link(worker, lease)
    link(worker, lease, "other", shard=2)
    worker.finish(lease)
    worker.exchange()
    servers.clock.ahead += 31
    worker.exchange()
    worker.exchange(shard=1)
    worker.exchange()
    assert servers.posts(0) == 1, "nothing is known of shard 2"
    worker.exchange(shard=2)
    worker.exchange()
    assert servers.posts(0) == 0


def test_a_post_is_taken_by_one_who_dies(servers: Servers) -> None:
    """A page is finished, its link acknowledged; the link's server loses its end, and the worker
    dies. Another one takes the post that the page has left, and dies, too: it becomes due again,
    and whoever is there sends the link."""
    first, second, third = servers.member(), servers.member(), servers.member()
    servers.lose(1, leave_a_post(servers, first))
    die(servers, first)
    servers.posts_are_due(0)
    second.exchange()  # takes it, and dies
    third.exchange()
    assert third.waiting() == 0, "the second one has it"
    servers.posts_are_due(0)
    third.exchange()
    third.exchange(shard=1)
    assert fetched(third) == ["link"]


def end(worker: Worker, servers: Servers) -> bool:
    """All exchanges until nothing waits, each safe, then the worker leaves. -> it was complete"""
    for _ in range(5):
        servers.clock.ahead += 31
        worker.exchange_all()
    return worker.complete and worker.leave()


def test_a_post_keeps_the_run_open(servers: Servers) -> None:
    """Nobody completes a run while a post is left, and it completes when it is gone."""
    first, second = servers.member(), servers.member()
    leave_a_post(servers, first)
    (there,) = second.claim(1, shard=1)
    second.finish(there)
    die(servers, first)
    for _ in range(3):
        servers.clock.ahead += 31
        assert not second.exchange_all()
    assert servers.posts(0) == 1, "all that is left"
    workers = [session.worker_id for session in second.sessions]
    assert not second.do(runs.is_idle(NAME, (0, 1, 2), workers))
    assert not second.leave()
    assert second.do(runs.conclude(NAME)) is None
    third = servers.member()
    assert third.joined.run == second.joined.run
    servers.posts_are_due(0)
    assert end(third, servers)


def test_shard_0_waits_for_start_requests_elsewhere(servers: Servers) -> None:
    """A start request is lost with the end of its server's log and with the worker that has asked
    for it. The run is not complete, and whoever comes next asks for it again."""
    first = servers.member()
    before = servers.keys(1)
    link(first, None, "start")
    first.exchange_all()
    servers.lose(1, before)
    die(servers, first)
    assert first.do(runs.conclude(NAME)) is None
    second = servers.member()
    assert second.joined.run == first.joined.run
    link(second, None, "start")
    (lease,) = second.claim(1, shard=1)
    second.finish(lease)
    assert end(second, servers)


def begun(worker: Worker, servers: Servers) -> None:
    """Shard 0 knows that all shards have begun the run."""
    servers.clock.ahead += 31
    worker.exchange_all()
    worker.exchange()


def test_a_shard_that_has_lost_the_run(servers: Servers) -> None:
    """It is not begun there anew; nothing is deleted, and nobody is left in the run. A reset works
    from there."""
    first = servers.member()
    begun(first, servers)
    page(first)
    servers.lose(1, {})
    die(servers, first)
    waiting = servers.keys(0)
    with pytest.raises(ShardLost, match=f"reset {NAME}"):
        servers.member()
    assert servers.keys(1) == {}
    now = servers.keys(0)
    assert now.keys() == waiting.keys()
    first.do(runs.reset(NAME, (0, 1, 2), force=False))
    assert servers.member().joined.new


@pytest.mark.parametrize("left", ["nothing", "a complete run", "an open run"])
def test_shard_0_has_lost_a_young_run(servers: Servers, left: str) -> None:
    """Nobody has to reset a run that is no older than what workers send again: it goes on as a new
    one. What other shards have of it stays, in whatever order workers come."""
    for seed in range(5):
        for shard in range(3):
            servers.lose(shard, {})
        old = servers.member()
        before = servers.keys(0) if left == "an open run" else {}
        assert end(old, servers)
        before = servers.keys(0) if left == "a complete run" else before
        first = servers.member()
        link(first, None)
        servers.lose(0, before)
        die(servers, first)
        terms = Terms(NAME, CONFIG, 600.0, 5, 100, 10_000, young=600.0)
        new = [calls.Registration(f"w{n}", 600.0) for n in range(2)]
        joins = [runs.join(terms, one, calls.JUST_NOW) for one in new]
        one, other = in_turn(cast(Any, servers), joins, random.Random(seed))
        second = servers.member()
        assert one.run == other.run == second.joined.run != first.joined.run
        link(second, None, "start")
        assert sorted(fetched(second)) == ["link", "start"]


def go_on(servers: Servers, worker: str) -> calls.Joined:
    """A worker joins for which no run is too old to go on with."""
    terms = Terms(NAME, CONFIG, 600.0, 5, 100, 10_000, young=600.0)
    steps = runs.join(terms, calls.Registration(worker, 600.0), calls.JUST_NOW)
    joined: calls.Joined = runs.drive(lambda call: execute(servers, call), steps)
    return joined


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_shard_that_still_has_the_run_before_the_lost_one(
    servers: Servers, is_sealed: bool
) -> None:
    """It does not go on with what that run has seen. It has lost its beginning of the next one, or
    the worker was killed before it came there."""
    old = servers.member()
    for shard, url in enumerate("abc"):
        link(old, None, url, shard)
        (lease,) = old.claim(1, shard=shard)
        old.finish(lease)
        old.exchange(shard=shard)
    unsealed = servers.keys(2)
    assert end(old, servers)
    before, sealed = servers.keys(0), servers.keys(2)
    first = servers.member()
    servers.lose(0, before)
    servers.lose(2, sealed if is_sealed else unsealed)
    new = go_on(servers, "w1")
    die(servers, first)
    second = servers.member()
    assert second.joined.run == new.run not in {old.joined.run, first.joined.run}
    for shard, url in enumerate("abc"):
        link(second, None, url, shard)
        assert fetched(second, shard) == [url]


@pytest.mark.parametrize("forgets", [(), (1,)])
def test_two_runs_are_lost_one_after_the_other(servers: Servers, forgets: Sequence[int]) -> None:
    """What a shard has of the first one is carried on, though it never came to the second one. The
    only shard that knows both may have lost the beginning of the first one."""
    assert end(servers.member(), servers)
    before = [servers.keys(shard) for shard in range(3)]
    first = servers.member()
    link(first, None, "link", 2)
    left = servers.keys(2)
    for shard in forgets:
        servers.lose(shard, before[shard])
    for worker in ("w1", "w2"):
        servers.lose(0, before[0])
        servers.lose(2, left)
        go_on(servers, worker)
    die(servers, first)
    assert fetched(servers.member(), 2) == ["link"]


def test_a_lost_run_that_had_all_of_the_one_before(servers: Servers) -> None:
    """With `REDISQ_KEEP_SEEN` it carries requests on, and so does one that begins without it when
    that run is lost."""
    old = servers.member()
    old.enqueue("link", slot=HOSTS[2])
    old.exchange_all()
    assert not old.leave()
    before = [servers.keys(shard) for shard in range(3)]
    first = servers.member(terms=calls.RunTerms(resume=False, keep_seen=True))
    assert first.joined.inherits == "all"
    for shard in (0, 2):
        servers.lose(shard, before[shard])
    go_on(servers, "w1")
    assert fetched(servers.member(), 2) == ["link"]


def test_a_shard_rewinds_between_two_looks(servers: Servers) -> None:
    """It brings the same count, but not the mark of the first look."""
    worker = servers.member()
    worker.exchange_all()
    servers.clock.ahead += 31
    worker.exchange_all()
    before = servers.keys(1)
    looks = 0

    def look(call: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 4:
            servers.lose(1, before)
        return execute(servers, call)

    workers = [session.worker_id for session in worker.sessions]
    assert not runs.drive(look, runs.is_idle(NAME, (0, 1, 2), workers))
    assert worker.do(runs.is_idle(NAME, (0, 1, 2), workers))


def test_a_requeue_to_a_shard_that_has_lost_its_seal(
    redis_server: RedisServer, servers: Servers
) -> None:
    """The run is complete but for a dead letter of a shard, which has lost what came after that.
    It goes on with what is requeued: another one would delete it."""
    worker = servers.member()
    link(worker, None, "page")
    (lease,) = worker.claim(1, shard=1)
    worker.finish(lease, "dead", reason="download")
    for _ in range(5):
        servers.clock.ahead += 31
        worker.exchange_all()
    before = servers.keys(1)
    assert worker.leave()
    servers.lose(1, before)
    client: Any = servers
    with open_server(redis_server.url) as server, Frontier(server, NAME, client=client) as view:
        assert view.requeue() == 1
    worker = servers.member()
    assert not worker.joined.new
    assert fetched(worker) == ["page"]


def test_replicas_are_waited_for() -> None:
    """Script and WAIT go together, also where the server has to be told the script first; the reply
    is there however many replicas are."""

    async def ask(master: RedisServer, replicas: int) -> bool:
        async with redis.asyncio.Redis.from_url(master.url) as client:
            call = calls.join(NAME, 0, calls.crawl("run"), EXACT)
            joined, confirmed = await execute_and_wait(client, call, replicas)
            assert joined.run == "run"
            return confirmed

    with RedisServer(any_server(), "--repl-diskless-sync-delay", "0") as master:
        with RedisServer(any_server(), "--replicaof", f"127.0.0.1 {master.port}") as replica:
            wait_until(lambda: in_step(replica), 20, "the replica")
            with master.client() as client:
                for replicas, expected in ((1, True), (2, False)):
                    client.script_flush()
                    assert asyncio.run(ask(master, replicas)) is expected
        assert not asyncio.run(ask(master, 1))
