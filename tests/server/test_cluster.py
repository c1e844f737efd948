"""A frontier on nodes of a cluster: scripts while slots move, and clients that find their nodes."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from redis.crc import key_slot

from lab.cluster import Cluster
from lab.servers import RedisServer
from scrapy_redisq.errors import ServerBusy
from scrapy_redisq.frontier.listener import listen
from scrapy_redisq.frontier.names import meta_key, wake_channel
from scrapy_redisq.frontier.scripts import execute
from scrapy_redisq.server import cluster as clients
from scrapy_redisq.server.connection import Server, open_server
from tests.harness.in_loop import until
from tests.harness.worker import EXACT, NAME, Worker, demand_for

META = meta_key(NAME, 0)
SLOT = key_slot(META.encode())
URL = "https://host.example/"


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
                        execute(by, session.call(1, demand_for(1)))
                assert {left: here.dump(left) for left in sorted(here.keys())} == before
                assert there.dbsize() == arrived
        cluster.end_move(SLOT, source, target)
        (lease,) = worker.claim(1)
        assert lease.entry == URL.encode()


def test_who_listens_is_heard_on_all_nodes_and_goes_to_another_one(cluster: Cluster) -> None:
    """What a script publishes on any node reaches the listener; also when its node was stopped."""

    async def be_heard(server: Server) -> None:
        heard: list[bool] = []
        client = server.async_client()
        await client.look(time.monotonic())
        pace = SimpleNamespace(listening=False, woken=False)
        listening = SimpleNamespace(  # what a run's session is to who listens
            client=client,
            terms=SimpleNamespace(name=NAME),
            joined=SimpleNamespace(config=SimpleNamespace(limits_name="")),
            sessions=[SimpleNamespace(shard=0, pace=pace)],
            warnings=SimpleNamespace(may_warn=lambda about: True),
            wake=lambda: heard.append(True),
        )
        task = asyncio.ensure_future(listen(listening))  # type: ignore[arg-type]

        async def hears(master: RedisServer) -> None:
            # Again and again: links between nodes may be down for a moment, and keep nothing.
            before = len(heard)
            await until(lambda: publish(master) or len(heard) > before, "it is heard", 20)

        try:
            await until(lambda: pace.listening, "it listens", 20)
            for master in {cluster.master_of(slot) for slot in (0, 8_000, 16_000)}:
                await hears(master)
            assert isinstance(client, clients.AsyncCluster)
            stopped = cluster._at(client.hash_slots.in_turn()[0][1])
            await asyncio.to_thread(cluster.restart, stopped)
            await hears(cluster.master_of(0))
        finally:
            task.cancel()
            await client.aclose()

    with open_server(cluster.url) as server:
        asyncio.run(be_heard(server))


def publish(server: RedisServer) -> None:
    with server.client() as client:
        client.eval("redis.call('PUBLISH', ARGV[1], '')", 0, wake_channel(NAME, 0))
