"""A frontier on nodes of a cluster."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import redis
from redis.crc import key_slot

from lab.servers import RedisServer, any_server, free_port, wait_until
from scrapy_redisq.errors import ServerBusy
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.scripts import execute
from tests.harness.worker import EXACT, NAME, Worker

META = calls.meta_key(NAME, 0)
SLOT = key_slot(META.encode())


@pytest.fixture
def nodes() -> Iterator[list[RedisServer]]:
    """Two masters; the frontier's slot is the first one's."""
    buses = [free_port() for _ in range(2)]
    servers = [
        RedisServer(any_server(), "--cluster-enabled", "yes", "--cluster-port", str(bus))
        for bus in buses
    ]
    try:
        with servers[0].client() as first, servers[1].client() as second:
            for number in range(2, 4):  # an epoch each, before they meet
                (first, second)[number - 2].execute_command("CLUSTER SET-CONFIG-EPOCH", number)
            first.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
            first.execute_command("CLUSTER MEET", "127.0.0.1", servers[1].port, buses[1])
            for node in (first, second):
                wait_until(functools.partial(_knows_all, node), 20, "the nodes know each other")
        yield servers
    finally:
        for server in servers:
            server.close()


def _knows_all(node: redis.Redis) -> bool:
    told = node.execute_command("CLUSTER INFO")
    return told["cluster_state"] == "ok" and int(told["cluster_known_nodes"]) == 2


def test_a_script_never_runs_half_while_its_slot_migrates(nodes: list[RedisServer]) -> None:
    """Whichever of its keys have moved: what the script does is done whole, or not at all."""
    with nodes[0].client() as source, nodes[1].client() as target:
        worker = Worker(source, NAME, EXACT)
        url = "https://host.example/"
        worker.send([url])
        ids = [str(node.execute_command("CLUSTER MYID"), "ascii") for node in (source, target)]
        target.execute_command("CLUSTER SETSLOT", SLOT, "IMPORTING", ids[0])
        source.execute_command("CLUSTER SETSLOT", SLOT, "MIGRATING", ids[1])
        keys = sorted(source.keys(), key=lambda key: key == META.encode())
        assert len(keys) > 3
        session = worker.sessions[0]
        for key in keys:
            source.execute_command("MIGRATE", "127.0.0.1", nodes[1].port, key, 0, 5_000)
            before = {left: source.dump(left) for left in sorted(source.keys())}
            there = target.dbsize()
            with pytest.raises(ServerBusy):
                execute(source, session.call(want=1))
            assert {left: source.dump(left) for left in sorted(source.keys())} == before
            assert target.dbsize() == there
        for node in (target, source):
            node.execute_command("CLUSTER SETSLOT", SLOT, "NODE", ids[1])
        worker.client = target
        (lease,) = worker.claim(1)
        assert lease.entry == url.encode()
