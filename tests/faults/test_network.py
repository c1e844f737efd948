"""What lies between a worker and Redis: it is slow, it is cut, it loses replies, it fails over."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from lab.sentinels import in_step
from lab.servers import RedisServer, wait_until
from tests.faults.oracle import assert_survived
from tests.faults.rig import MOST_LEASES, Rig


def test_f15_cut_off(rig: Rig) -> None:
    """One worker is cut off for three TTLs, without a reset; its event loop runs on."""
    rig.set_up(delay=0.05)
    proxy = rig.proxy()
    lonely, *_ = rig.fleet(first={"url": rig.server.url_through(proxy.port)})
    rig.wait_for_pages(0.1)
    proxy.cut()
    rig.stay(3 * rig.ttl)
    proxy.mend()
    rig.finish()
    assert_survived(rig, refetch=MOST_LEASES)
    assert len(rig.warnings(lonely, "Redis is away")) == 1
    blocked = lonely.stats["fault/longest_block"]
    rig.measured["seconds"] = blocked
    assert blocked < 1


def test_f16_slow_and_broken(rig: Rig) -> None:
    """200 ms to Redis, and 2 % of the messages end in a reset of the connection."""
    rig.set_up(delay=0.02, ttl=15)
    proxy = rig.proxy()
    # In the short time that the small crawl takes as many as in a minute of the large one's.
    proxy.round_trip, proxy.reset_share = 0.2, rig.size.pick(0.06, 0.02)
    fleet = rig.fleet(url=rig.server.url_through(proxy.port))
    until = time.monotonic() + rig.size.pick(10, 60)
    wait_until(
        lambda: (
            (time.monotonic() > until and proxy.resets >= 3)
            or not any(worker.running for worker in fleet)
        ),
        90,
        "60 s",
    )
    proxy.round_trip, proxy.reset_share = 0.0, 0.0
    rig.finish()
    assert proxy.resets >= 3
    assert_survived(rig, refetch=0)


@pytest.mark.parametrize("silent", [False, True])
def test_f17_reply_dropped(rig: Rig, silent: bool) -> None:
    """An exchange is executed and its reply dropped: same leases again, nothing enqueued twice."""
    # Well over the pauses of a worker that tries again.
    rig.set_up(delay=rig.size.pick(0.2, 0.01), ttl=30, socket_timeout=0.5)
    proxy = rig.proxy()
    fleet = rig.fleet(url=rig.server.url_through(proxy.port))
    proxy.silent, proxy.drop_share = silent, rig.size.pick(0.4, 0.2)
    wait_until(
        lambda: proxy.dropped >= rig.size.pick(10, 20), rig.size.pick(40, 60), "replies are dropped"
    )
    proxy.drop_share = 0.0
    rig.finish()
    status = assert_survived(rig, refetch=0)
    assert status["claimed"] == status["finished"] + status["released"]
    assert status["reclaimed"] == status["stale"] == 0
    assert not any("leases are void" in worker.log for worker in fleet)


def replica_of(rig: Rig) -> RedisServer:
    """A replica of the rig's server that has everything."""
    replica = rig.start_server("redis-7")
    with replica.client() as client:
        client.replicaof("127.0.0.1", rig.server.port)
    wait_until(lambda: in_step(replica), 20, "in step")
    return replica


def wait_until_told(primary: RedisServer, replica: RedisServer) -> None:
    """Wait until the replica has all that the primary has now."""
    with primary.client() as told, replica.client() as client:
        offset = told.info("replication")["master_repl_offset"]
        wait_until(lambda: client.info("replication")["slave_repl_offset"] >= offset, 20, "in step")


def assert_once_more(rig: Rig, told: int, away: int) -> int:
    """Assert that of a lost tail of history no page is asked for more than once again.

    ``told`` and ``away`` are numbers of hits: of those before ``told`` the replica knew who held
    them, and from ``away`` on there was no primary.

    -> the most that may be asked for again: pages of which the ends were lost, at most all leases;
    all that were begun in the lost time; and what the workers had leases of when the primary was
    gone, at most all leases, as far as they went on with it.
    """
    leases = rig.size.workers * MOST_LEASES
    paths = [hit.path for hit in rig.site.hits]
    times = Counter(paths)
    assert max(times.values()) <= 2
    before, after = set(paths[:told]), set(paths[away:]) - set(paths[:away])
    again_before, again_after = (sum(times[path] > 1 for path in part) for part in (before, after))
    assert again_before <= leases
    assert again_after <= leases
    return leases + away - told + again_after


@pytest.mark.parametrize("primary", ["demoted", "killed"])
def test_f22_failover(rig: Rig, primary: str) -> None:
    """A replica is promoted under load, and the address of the primary becomes its address."""
    rig.set_up(delay=0.05, options=("--repl-diskless-sync-delay", "0"))
    address = rig.proxy()
    rig.fleet(url=rig.server.url_through(address.port))
    rig.wait_for_pages(0.1)
    replica = replica_of(rig)
    address.to_port = replica.port
    told = len(rig.site.hits)
    wait_until_told(rig.server, replica)
    if primary == "killed":
        rig.server.kill()
    with replica.client() as client:
        client.replicaof("NO", "ONE")
    if primary == "demoted":
        # Its connections stay open, and it refuses to write; what it took until now is lost.
        with rig.server.client() as client:
            client.replicaof("127.0.0.1", replica.port)
    away = len(rig.site.hits)
    rig.measured["seconds"] = rig.wait_for_flow_again(10, quiet=1)
    rig.finish()
    assert_survived(rig, refetch=assert_once_more(rig, told, away), server=replica)
