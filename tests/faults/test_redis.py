"""A Redis server that goes away, loses what it knew, is full, or is not what it should be."""

from __future__ import annotations

import functools
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from lab.servers import RedisServer, wait_until
from tests.faults.oracle import assert_survived
from tests.faults.rig import MOST_LEASES, PASSWORD, Rig
from tests.harness.crawl import gaps, several


def seldom(rig: Rig, text: str, seconds: float) -> bool:
    """Every worker warned of ``text``, and never twice within ``seconds``."""
    times = [rig.warnings(worker, text) for worker in rig.workers]
    return all(times) and all(gap >= seconds for of_one in times for gap in gaps(of_one))


def test_f10_restart(rig: Rig) -> None:
    """Redis restarts and is away for 5 s: no worker exits, pages flow again, few warnings."""
    rig.set_up(delay=rig.size.pick(0.1, 0.02), aof=True)
    rig.under_way(0.4)
    rig.server.stop()
    rig.stay(5, lambda: all(worker.running for worker in rig.workers))
    rig.server.start()
    rig.measured["seconds"] = rig.wait_for_flow(5)
    rig.finish()
    assert_survived(rig, refetch=0)
    assert seldom(rig, "Redis is away", 5)


@pytest.mark.parametrize("lost", [0, 1])
def test_f11_server_killed(rig: Rig, lost: int) -> None:
    """SIGKILL of the server: with its log as it is, and without the last second of it."""
    rig.set_up(delay=0.02, aof=True)
    rig.under_way(0.4)
    # With those that the workers held, and went on with while the server was away.
    pages_lost = rig.kill_the_server(lost)
    rig.measured["seconds"] = rig.wait_for_flow(10)
    rig.finish()
    assert_survived(rig, refetch=rig.size.workers * MOST_LEASES + pages_lost)
    for worker in rig.workers:
        assert ("Redis lost recent writes" in worker.log) is bool(lost)


def test_f11b_any_prefix_of_the_log(rig: Rig) -> None:
    """The log of a crawl is cut at random places: a fresh worker drains what each prefix holds,
    and another restart changes nothing of that."""
    cuts = int(rig.size.pick(4, 100))
    rig.set_up(
        server=rig.random.choice(["redis-6", "redis-7"]),
        pages=int(rig.size.pick(60, 200)),
        aof=True,
        ttl=1,
    )
    rig.fleet(2)
    rig.finish()
    assert_survived(rig, refetch=0)
    rig.server.stop()
    size = rig.server.log_file.stat().st_size
    rig.stay(rig.ttl)  # those who wrote it are dead for all who read it now
    places = sorted(rig.random.sample(range(size), cuts))
    wrong = []
    # Several crawls in a process, each of its own: starting processes takes longer than crawling.
    processes = int(rig.size.pick(1, 10))
    parts = [places[first::processes] for first in range(processes)]
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(functools.partial(drain, rig), parts):
            wrong += found
    rig.measured.update(runs=cuts, missing=len(wrong))
    assert not wrong, "\n".join(wrong)


def drain(rig: Rig, places: list[int]) -> list[str]:
    """Load each prefix of the log into a fresh server and crawl on; -> what is wrong."""
    log = rig.server.log_file.relative_to(rig.server.folder)
    with ExitStack() as stack:
        servers, settings, before = [], [], []
        for place in places:
            server = RedisServer(rig.server.binary, password=PASSWORD, aof=True)
            servers.append(stack.enter_context(server))
            server.kill()
            others = shutil.ignore_patterns("log", "*.sock")
            shutil.copytree(rig.server.folder, server.folder, ignore=others, dirs_exist_ok=True)
            os.truncate(server.folder / log, place)
            server.start()
            sink = rig.make_sink(rig.folder / f"sink-{place}.sqlite")
            given = {**rig.settings, "REDISQ_URL": servers[-1].url, "SINK": sink}
            # Several crawls begin in one process: the first ones stand still for a while.
            given["REDISQ_LEASE_TTL"] = 60
            settings.append({name: str(value) for name, value in given.items()})
            before.append(rig.status(server=servers[-1]))
        reasons = several("fault", rig.site.url, settings)
        after = [state_of(rig, server) for server in servers]
        for server in servers:
            server.kill()
            server.start()
        again = [state_of(rig, server) for server in servers]
    return [
        f"cut at {place}: {reason}, {then}, {now}, {later}"
        for place, reason, then, now, later in zip(
            places, reasons, before, after, again, strict=True
        )
        if now != later
        or not drained(rig, reason, then, now[0], rig.rows(rig.folder / f"sink-{place}.sqlite"))
    ]


def state_of(rig: Rig, server: RedisServer) -> tuple[dict[str, Any], set[bytes]]:
    """What the frontier says, and which keys there are that stay."""
    with server.client() as client:
        stay = {key for key in client.scan_iter() if client.ttl(key) < 0}
    return rig.status(server=server), stay


def drained(
    rig: Rig,
    reason: str,
    before: dict[str, Any],
    after: dict[str, Any],
    rows: list[tuple[str, str, int]],
) -> bool:
    """What the prefix had not finished was stored, once each, and nothing else."""
    # A complete run is followed by a new one, which fetches all pages.
    left = rig.pages - (0 if before["state"] == "complete" else before["finished"])
    return (
        reason == "finished"
        and after["state"] == "complete"
        and after["created"] == after["finished"] == rig.pages
        and after["dead"] == 0
        and len(rows) == left
        and all(stored == 1 for _, _, stored in rows)
    )


@pytest.mark.parametrize("how", ["flushall", "empty"])
def test_f12_frontier_lost(rig: Rig, how: str) -> None:
    """FLUSHALL, or a restart without data: all close as frontier_lost, none as finished."""
    rig.set_up(delay=rig.size.pick(0.2, 0.05))
    rig.under_way(0.1)
    if how == "flushall":
        with rig.server.client() as client:
            client.flushall()
    else:
        rig.server.kill()
        rig.server.start()
    rig.finish(30)
    for worker in rig.workers:
        assert worker.reason == "frontier_lost"
        assert "ERROR: Closing (frontier_lost): frontier 'fault' is gone" in worker.log
        assert "Traceback" not in worker.log
        assert PASSWORD not in worker.log


def test_f19_script_flush(rig: Rig) -> None:
    """SCRIPT FLUSH ten times a second: not visible."""
    rig.set_up(delay=0.02, aof=True)
    rig.fleet()
    with rig.server.client() as client:
        assert rig.repeat(client.script_flush, every=0.1, seconds=10) > 30
    rig.finish()
    assert_survived(rig, refetch=0)
    assert not any(rig.warnings(worker, "") for worker in rig.workers)


@pytest.mark.parametrize("kind", ["redis-6", "redis-7"])
def test_f20_full_memory(rig: Rig, kind: str) -> None:
    """maxmemory is reached at half and raised later: the workers drain, then wait."""
    rig.pages = max(400, rig.pages)
    # With fewer at a time all of them might wait for the room that their links need.
    rig.set_up(
        server=kind,
        delay=0.02,
        CONCURRENT_REQUESTS=16,
        REDISQ_MAX_OUTBOX=int(rig.size.pick(100, 300)),
    )
    rig.under_way(0.4)
    with rig.server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)
        before = rig.status()

        def drains() -> bool:
            now = rig.status()
            return all(now[name] > before[name] + 10 for name in ("finished", "claimed"))

        wait_until(drains, 60, "finishing and claiming go on")
        quiet_since = [time.monotonic(), len(rig.site.hits)]

        def starts_no_pages() -> bool:
            if quiet_since[1] != len(rig.site.hits):
                quiet_since[:] = time.monotonic(), len(rig.site.hits)
            return time.monotonic() - quiet_since[0] > 2

        wait_until(starts_no_pages, 30, "the outboxes are full and no page is started")
        assert all(worker.running for worker in rig.workers)
        assert rig.status()["finished"] < rig.pages
        # A page whose links wait keeps its lease.
        assert rig.status()["leased"] <= rig.size.workers * (MOST_LEASES + 300)
        client.config_set("maxmemory", 0)
    rig.finish()
    assert_survived(rig, refetch=0)
    assert seldom(rig, "maxmemory", 30)


def test_f26_clients_killed(rig: Rig) -> None:
    """CLIENT KILL every second."""
    rig.set_up(server="redis-6", delay=rig.size.pick(0.4, 0.06))
    rig.fleet()

    def kill() -> None:
        with rig.server.client() as client:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    times = rig.repeat(kill, every=rig.size.pick(0.3, 1), seconds=rig.size.pick(4, 30))
    assert times >= rig.size.pick(4, 25)
    rig.finish()
    assert_survived(rig, refetch=0)
