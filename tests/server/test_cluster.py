"""A frontier on nodes of a cluster: scripts while slots move, and clients that find their nodes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from lab.cluster import KINDS, Cluster
from lab.servers import RedisServer, binaries, wait_until
from scrapy_redisq.errors import ServerBusy
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.listener import listen
from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.server import cluster as clients
from scrapy_redisq.server.connection import Server, open_server
from tests.harness.worker import EXACT, NAME, Worker
from tests.server.listening import CHANNEL, Listening

META = meta_key(NAME, 0)
SLOT = key_slot(META.encode())
URL = "https://host.example/"
AWAY = (redis.ConnectionError, redis.TimeoutError, ServerBusy)
PASSWORD = "pass of the cluster"


@pytest.fixture(scope="module")
def replicated() -> Iterator[Cluster]:
    """Three masters with a replica each, that take a node for dead after half a second."""
    with Cluster(
        binaries()[KINDS[-1]], replicas=1, node_timeout=0.5, password=PASSWORD, aof=True
    ) as cluster:
        yield cluster


@pytest.fixture
def open_client() -> Iterator[Callable[..., clients.Cluster]]:
    """Opens the client of a cluster."""
    with ExitStack() as stack:

        def opened(cluster: Cluster, **options: Any) -> clients.Cluster:
            server = stack.enter_context(open_server(cluster.url, **options))
            client = stack.enter_context(server.client())
            assert isinstance(client, clients.Cluster)
            return client

        yield opened


@pytest.fixture
def worker(
    replicated: Cluster, open_client: Callable[..., clients.Cluster]
) -> Iterator[tuple[Worker, RedisServer]]:
    """A worker with a request in the frontier, on a cluster in order; and the frontier's master.
    Afterwards all nodes run again."""
    replicated.flush()
    worker = Worker(open_client(replicated, socket_timeout=0.5), NAME, EXACT)  # type: ignore[arg-type]
    worker.send([URL])
    master = replicated.master_of(META)
    yield worker, master
    if not master.running:
        master.start()
    replicated.wait_until_in_order()


def test_a_script_never_runs_half_while_its_slot_migrates(cluster: Cluster) -> None:
    """Whichever of its keys have moved: what the script does is done whole, or not at all. A client
    that follows its slot says that it is busy, and goes on where all keys are."""
    with open_server(cluster.url) as server, server.client() as client:
        worker = Worker(client, NAME, EXACT)  # type: ignore[arg-type]
        worker.send([URL])
        target = next(server for server in cluster.servers if server is not cluster.master_of(SLOT))
        source = cluster.begin_to_move(SLOT, target)
        keys = sorted(cluster.keys_of(SLOT, source), key=lambda key: key == META.encode())
        assert len(keys) > 3
        session = worker.sessions[0]
        with source.client() as here, target.client() as there:
            for key in keys:
                cluster.move_keys(source, target, [key])
                before = {left: here.dump(left) for left in sorted(here.keys())}
                arrived = there.dbsize()
                for by in (client, here):
                    with pytest.raises(ServerBusy):
                        execute(by, session.call(want=1))
                assert {left: here.dump(left) for left in sorted(here.keys())} == before
                assert there.dbsize() == arrived
        cluster.end_move(SLOT, source, target)
        (lease,) = worker.claim(1)
        assert lease.entry == URL.encode()


def test_a_planned_failover_is_followed_at_once(
    replicated: Cluster, worker: tuple[Worker, RedisServer]
) -> None:
    """Nothing is lost, and no call fails: the old master names the new one."""
    someone, master = worker
    replicated.fail_over(master)
    (lease,) = someone.claim(1)
    assert lease.entry == URL.encode()


@pytest.mark.parametrize("how", ["killed", "without an answer"])
def test_a_master_that_is_gone_is_found_again_where_its_replica_is(
    replicated: Cluster, worker: tuple[Worker, RedisServer], how: str
) -> None:
    """Calls fail until the others have made the replica master; then they pass."""
    someone, master = worker
    with master.client() as client:
        assert client.wait(1, 5_000) == 1
    if how == "killed":
        master.kill()
    else:
        master.signal(signal.SIGSTOP)
    try:
        with pytest.raises(AWAY):
            someone.claim(1)
        (lease,) = wait_until(lambda: passes(lambda: someone.claim(1)), 20, "a call passes")
        assert lease.entry == URL.encode()
    finally:
        if how != "killed":
            master.signal(signal.SIGCONT)


def passes(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except AWAY:
        return None


def test_all_nodes_gone_and_back(replicated: Cluster, worker: tuple[Worker, RedisServer]) -> None:
    """As long as nobody answers each call fails; then all is as it was."""
    someone, _ = worker
    for server in replicated.servers:
        server.stop()
    for _ in range(3):
        with pytest.raises(AWAY):
            someone.claim(1)
    for server in replicated.servers:
        server.start()
    (lease,) = wait_until(lambda: passes(lambda: someone.claim(1)), 20, "a call passes")
    assert lease.entry == URL.encode()


def test_who_listens_is_heard_on_all_nodes_and_goes_to_another_one(replicated: Cluster) -> None:
    """What a script publishes on any node reaches the listener; also when its node was stopped."""

    async def be_heard(server: Server) -> None:
        heard: list[bool] = []
        client = server.async_client()
        await client.look()
        listening = Listening(client, lambda: heard.append(True))
        task = asyncio.ensure_future(listen(listening))  # type: ignore[arg-type]

        async def hears(master: RedisServer) -> None:
            # Again and again: links between nodes may be down for a moment, and keep nothing.
            before = len(heard)
            await until(lambda: publish(master) or len(heard) > before)

        try:
            await until(lambda: listening.pace.listening)
            for master in {replicated.master_of(slot) for slot in (0, 8_000, 16_000)}:
                await hears(master)
            assert isinstance(client, clients.AsyncCluster)
            stopped = replicated._at(client.hash_slots.in_turn()[0][1])
            await asyncio.to_thread(replicated.restart, stopped)
            await hears(replicated.master_of(0))
        finally:
            task.cancel()
            await client.aclose()

    with open_server(replicated.url) as server:
        asyncio.run(be_heard(server))


def publish(server: RedisServer) -> None:
    with server.client() as client:
        client.eval("redis.call('PUBLISH', ARGV[1], '')", 0, CHANNEL)


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition, 20, "what was heard")


def test_who_has_the_last_word(
    replicated: Cluster, open_client: Callable[..., clients.Cluster]
) -> None:
    """Most masters, and they agree with what was used; two of three without an answer: nobody."""
    client = open_client(replicated)
    client.execute_command("TYPE", META)
    assert client.confirm()
    masters = [replicated.master_of(slot) for slot in (0, 8_000, 16_000)]
    held = [server for server in masters if server is not replicated.master_of(META)]
    for server in held:
        server.signal(signal.SIGSTOP)
    try:
        assert not client.confirm()
    finally:
        for server in held:
            server.signal(signal.SIGCONT)
        replicated.wait_until_in_order()


def test_each_shard_has_a_master_of_its_own(
    replicated: Cluster, open_client: Callable[..., clients.Cluster]
) -> None:
    """A worker's keys lie on all masters."""
    replicated.flush()
    config = FrontierConfig(dupefilter="exact", backend="exact", spider="books", shards=3)
    client = open_client(replicated)
    Worker(client, NAME, config.laid_out(3))  # type: ignore[arg-type]
    assert all(master.dbsize() > 0 for master in client.masters())
