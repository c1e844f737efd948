"""A cluster of three masters, most with replicas: slots that move, masters that change or are gone.

The pages lie on many hosts, with links across them, so that each shard has its share.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from redis.crc import key_slot

from lab.cluster import Cluster
from lab.servers import RedisServer, wait_until
from scrapy_redisq.frontier.names import meta_key
from scrapy_redisq.frontier.shards import shard_numbers
from tests.faults.oracle import assert_survived
from tests.faults.rig import MOST_LEASES, Rig

HOSTS = 12


def set_up(
    rig: Rig,
    *,
    kind: str = "redis-7",
    replicas: int = 1,
    masters: int = 3,
    node_timeout: float | None = None,
    **options: object,
) -> Cluster:
    """A cluster that takes a node for dead after one second, in full after two."""
    rig.set_up(
        server=kind,
        cluster={
            "masters": masters,
            "replicas": replicas,
            "node_timeout": node_timeout or rig.size.pick(1, 2),
        },
        hosts=HOSTS,
        delay=rig.size.pick(0.1, 0.02),
        aof=True,
        # Well over the time of a failover, as it is to be in earnest.
        ttl=rig.size.pick(8, 12),
        **options,  # type: ignore[arg-type]
    )
    assert isinstance(rig.server, Cluster)
    return rig.server


def assert_quiet_about(rig: Rig, most: int) -> None:
    """Each worker has warned of the outage, ``most`` times at most for each shard, and said when it
    was over."""
    for worker in rig.workers:
        assert len(rig.warnings(worker, "Redis is away")) <= most, worker.log
        assert "unexpected" not in worker.log, worker.log


def slot_of(shard: int = 0) -> int:
    return int(key_slot(meta_key("fault", shard).encode()))


@pytest.mark.parametrize("shards", [1, 3])
def test_f51_a_slot_moved_key_by_key(rig: Rig, shards: int) -> None:
    """A shard's hash slot is moved to another master by MIGRATE, each key of it under load."""
    cluster = set_up(rig, replicas=0, REDISQ_SHARDS=shards)
    rig.under_way(0.3)
    slot = slot_of()
    source = cluster.master_of(slot)
    target = next(server for server in cluster.masters() if server is not source)
    cluster.begin_to_move(slot, target)
    keys = cluster.keys_of(slot, source)
    for number, key in enumerate(keys):
        cluster.move_keys(source, target, [key])
        if number % (len(keys) // 10) == 0:
            rig.stay(0.1)  # workers come by
    cluster.end_move(slot, source, target)
    rig.measured["seconds"] = rig.wait_for_flow(10)
    rig.finish()
    assert cluster.master_of(slot) is target
    assert_survived(rig, refetch=0)
    assert_quiet_about(rig, 1)


def test_f52_slots_moved_at_once(rig: Rig) -> None:
    """CLUSTER MIGRATESLOTS of Valkey 9: a shard's hash slot goes from master to master, whole."""
    cluster = set_up(rig, kind="valkey-9", replicas=0)
    rig.under_way(0.1)
    for share in (0.2, 0.4, 0.6):
        slot = slot_of()
        source = cluster.master_of(slot)
        target = next(server for server in cluster.masters() if server is not source)
        cluster.migrate_slot(slot, target)
        rig.wait_for_pages(share)
    rig.finish()
    assert_survived(rig, refetch=0)


@pytest.mark.parametrize("kind", ["redis-7", "valkey-9"])
def test_f53_planned_failover(rig: Rig, kind: str) -> None:
    """CLUSTER FAILOVER of each master, one after the other: nothing is fetched again."""
    cluster = set_up(rig, kind=kind)
    rig.fleet()
    for share, master in zip((0.2, 0.4, 0.6), cluster.masters(), strict=True):
        rig.wait_for_pages(share)
        cluster.fail_over(master)
    rig.measured["seconds"] = rig.wait_for_flow(10)
    rig.finish()
    cluster.wait_until_in_order()
    assert_survived(rig, refetch=0)
    assert_quiet_about(rig, 1)


Change = Callable[[RedisServer], object]
KILLED: tuple[Change, Change] = (RedisServer.kill, RedisServer.start)
STOPPED: tuple[Change, Change] = (
    lambda master: master.signal(signal.SIGSTOP),
    lambda master: master.signal(signal.SIGCONT),
)
"""How a master goes away, and comes back."""


def assert_survived_without(
    rig: Rig, cluster: Cluster, masters: list[RedisServer], change: tuple[Change, Change]
) -> None:
    """Masters go away until their replicas have taken over, and come back later."""
    go, come_back = change
    rig.under_way(0.3)
    replicas = [cluster.replica_of(master) for master in masters]
    hits = len(rig.site.hits)
    for master in masters:
        go(master)
    for replica in replicas:
        cluster.wait_for_master(replica)
    rig.measured["seconds"] = rig.wait_for_flow(20)
    # What was held, and what was begun since, of which the end may be lost.
    allowed = rig.size.workers * MOST_LEASES + len(rig.site.hits) - hits
    rig.wait_for_pages(0.7)
    for master in masters:
        come_back(master)
    rig.finish()
    cluster.wait_until_in_order()
    assert_survived(rig, refetch=allowed)


@pytest.mark.parametrize(
    ("stopped", "shards"),
    [pytest.param(False, 1, marks=pytest.mark.smoke), (False, 3), (True, 1), (True, 3)],
)
def test_f54_master_gone(rig: Rig, stopped: bool, shards: int) -> None:
    """A master is killed, or does not answer; its replica takes over, and it comes back as one."""
    cluster = set_up(rig, REDISQ_SHARDS=shards)
    change = STOPPED if stopped else KILLED
    assert_survived_without(rig, cluster, [cluster.master_of(slot_of())], change)
    assert_quiet_about(rig, 2)


def test_f55_two_masters_gone(rig: Rig) -> None:
    """Two of five masters are killed at once."""
    cluster = set_up(rig, masters=5)
    assert_survived_without(rig, cluster, cluster.masters()[:2], KILLED)


@pytest.mark.parametrize("together", [True, False])
def test_f56_all_restarted(rig: Rig, together: bool) -> None:
    """All nodes are restarted, at once or one after the other, and keep their logs."""
    cluster = set_up(rig, replicas=0)
    rig.under_way(0.3)
    if together:
        for server in cluster.servers:
            server.stop()
        rig.stay(1, lambda: all(worker.running for worker in rig.workers))
        for server in cluster.servers:
            server.start()
        cluster.wait_until_in_order()
    else:
        for share, server in zip((0.4, 0.5, 0.6), cluster.servers, strict=True):
            cluster.restart(server)
            rig.wait_for_pages(share)
    rig.measured["seconds"] = rig.wait_for_flow(10)
    rig.finish()
    assert_survived(rig, refetch=0)
    assert_quiet_about(rig, 1 if together else 3)


def test_f57_a_master_more(rig: Rig) -> None:
    """A master joins while the crawl runs, and gets the hash slots of all shards, one by one."""
    cluster = set_up(rig, replicas=0)
    rig.under_way(0.2)
    added = cluster.add_master()
    for shard in shard_numbers("fault", 3, True):
        slot = slot_of(shard)
        source = cluster.begin_to_move(slot, added)
        cluster.move_keys(source, added, cluster.keys_of(slot, source))
        cluster.end_move(slot, source, added)
    wait_until(lambda: added in cluster.masters(), 20, "it serves slots")
    rig.finish()
    assert_survived(rig, refetch=0)


@pytest.mark.parametrize("shards", [1, 3])
def test_f58_cut_off_from_the_others(rig: Rig, shards: int) -> None:
    """Workers reach a master that the other nodes do not, until it gives up; its replica has taken
    over. Nobody has finished on the dead branch, and it comes back as a replica."""
    local = ("--enable-debug-command", "local")
    cluster = set_up(rig, kind="valkey-9", options=local, REDISQ_SHARDS=shards)
    change = cluster.cut_off, lambda master: cluster.cut_off(master, False)
    assert_survived_without(rig, cluster, [cluster.master_of(slot_of())], change)


def test_f59_cut_off_from_workers(rig: Rig) -> None:
    """Workers do not reach a master that the other nodes and its replica reach. It stays a master,
    workers wait for it, and other shards go on."""
    cluster = set_up(rig)
    rig.under_way(0.3)
    master = cluster.master_of(slot_of())
    with master.client() as client:
        client.execute_command("CLIENT", "PAUSE", 5_000, "ALL")
    rig.measured["seconds"] = rig.wait_for_flow_again(20, quiet=6)
    rig.finish()
    assert cluster.master_of(slot_of()) is master
    assert_survived(rig, refetch=0)
    assert_quiet_about(rig, 1)


def test_f60_the_end_without_most_masters(rig: Rig) -> None:
    """All is done, and one master of three says so, on the lesser side of a split that nobody has
    noticed yet: no worker says `finished` before the others answer again."""
    cluster = set_up(rig, replicas=0, node_timeout=60, hold=True, REDISQ_SHARDS=1)
    fleet = rig.under_way(0.9)
    others = [server for server in cluster.masters() if server is not cluster.master_of(slot_of())]
    for server in others:
        server.signal(signal.SIGSTOP)
    rig.released.set()
    for worker in fleet:
        worker.wait_for("Nothing is left to do, but this worker waits")
    rig.stay(1, lambda: all(worker.running for worker in fleet))
    for server in others:
        server.signal(signal.SIGCONT)
    rig.finish()
    assert_survived(rig, refetch=0)
