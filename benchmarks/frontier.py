"""The frontier without Scrapy's engine, beside scrapy-redis' queue and a bare pipeline."""

from __future__ import annotations

import functools
import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common import Figures, Result, Target, alternate, cpu_of
from benchmarks.loads.clients import Clients
from lab.servers import RedisServer, any_server, binaries
from scrapy_redisq.server.embedded.binaries import bloom_module

REQUESTS = 50_000  # a second, on one Redis
OVER_PEER = 10
OF_BARE = 0.3

WHOLE_TOO = "whole"
COLUMNS = ["what", "Redis", "clients", "requests/s", "Redis CPU µs", "of a core"]


@dataclass(frozen=True)
class Variant:
    """One way to do the work. ``job``: what is told to the clients."""

    name: str
    job: dict[str, Any] = field(default_factory=dict)
    peer: bool = False


def _ours(backend: str, *, whole: bool = False) -> Variant:
    name = f"redisq {backend}" + (f", {WHOLE_TOO}" if whole else "")
    return Variant(name, {"job": "frontier", "backend": backend, "whole": whole})


BACKENDS = ["exact", "bitmap", *(["redisbloom"] if bloom_module() else [])]
OURS = [_ours(backend) for backend in BACKENDS]
WHOLE = _ours(BACKENDS[-1], whole=True)
PEER = Variant("scrapy-redis", {"job": "work", "whole": False}, peer=True)
WHOLE_PEER = Variant(f"{PEER.name}, {WHOLE_TOO}", {"job": "work", "whole": True}, peer=True)
BARE = Variant("bare pipeline", {"job": "bare"})
BARE_REDIS_PY = Variant("bare pipeline, redis-py", {"job": "redis-py"})
SERVERS = {
    version: kind
    for version, kind in {"7.0": "redis-7", "6.2": "redis-6"}.items()
    if kind in binaries()
} or {kind: kind for kind in list(binaries())[:1]}
VARIANTS = [*OURS, WHOLE, PEER, WHOLE_PEER, BARE_REDIS_PY, BARE]


def _measure(
    server: RedisServer, clients: Clients, number: int, variant: Variant, seconds: float
) -> Figures:
    with server.client() as client:
        client.flushall()
        before: list[float] = []

        def cpu() -> float:
            return cpu_of(client.info("cpu"))

        def prepared() -> None:
            before.append(cpu())

        results = clients.run(number, prepared, port=server.port, seconds=seconds, **variant.job)
        used = cpu() - before[0]
    requests = sum(result["requests"] for result in results)
    taken = max(result["seconds"] for result in results)
    return {
        "requests/s": requests / taken,
        "Redis CPU µs": used * 1e6 / requests,
        "of a core": used / taken,
    }


def run(*, quick: bool) -> Result:
    """Measure all variants with growing numbers of clients on each Redis of this machine."""
    numbers = (1,) if quick else (1, 2, 4, 8)
    seconds, rounds = (0.1, 1) if quick else (0.8, 3)
    variants = [variant for variant in VARIANTS if not (quick and variant.peer)]
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        clients = {
            peer: stack.enter_context(Clients(numbers[-1], peer=peer))
            for peer in {variant.peer for variant in variants}
        }
        for version, kind in list(SERVERS.items())[: 1 if quick else None]:
            server = RedisServer(any_server(kind), bloom=bloom_module() is not None)
            stack.callback(server.close)
            for number in numbers:
                measured = alternate(
                    {
                        variant.name: functools.partial(
                            _measure, server, clients[variant.peer], number, variant, seconds
                        )
                        for variant in variants
                    },
                    rounds,
                )
                rows += [
                    {"what": name, "Redis": version, "clients": number, **figures}
                    for name, figures in measured.items()
                ]
    return Result(
        "frontier",
        "Requests through dedupe, queue, lease and finish",
        COLUMNS,
        rows,
        targets=_targets(rows),
        notes=[
            "Exchanges of 100 enqueues, 100 claims, 100 finishes over 10 slots; scrapy-redis one "
            "by one, as it does. Entries and fingerprints are at hand on both sides; whole: "
            "Scrapy's requests are made, fingerprinted, serialised and made anew by the clients.",
            "Bare pipeline: 100 times SADD, RPUSH, LPOP, no lease, no finish, nothing decided on "
            "what SADD answers; from bytes at hand, so that clients cost nothing, and by redis-py, "
            "where they cost as much as ours.",
            "Of a core: how much of one Redis used. Clients and Redis share the cores of this "
            "machine; where they leave Redis less than a core, requests/s tell of them, and Redis "
            "CPU µs a request (user and system, network included) tells of Redis.",
        ],
    )


def _targets(rows: list[dict[str, Any]]) -> list[Target]:
    """The goals, each by the best dupefilter, and reached if it is on every Redis."""
    told: dict[str, list[str]] = {}
    reached: dict[str, bool] = {}
    goals: dict[str, float] = {}

    def judge(what: str, version: str, value: float, wanted: float, more: str = "") -> None:
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
        told.setdefault(what, []).append(f"{shown}{more} (Redis {version})")
        goals[what] = wanted
        reached[what] = reached.get(what, True) and value >= wanted

    ours = [variant.name for variant in OURS]
    for version in sorted({row["Redis"] for row in rows}, reverse=True):
        best: dict[str, float] = {}
        cpu: dict[str, float] = {}
        for row in rows:
            if row["Redis"] == version:
                name = row["what"]
                best[name] = max(best.get(name, 0.0), row["requests/s"])
                cpu[name] = min(cpu.get(name, math.inf), row["Redis CPU µs"])
        fastest, least = max(best[name] for name in ours), min(cpu[name] for name in ours)
        full = f", {1e6 / least:,.0f} by a full core"
        judge("requests/s on one Redis", version, fastest, REQUESTS, full)
        if PEER.name in best:
            whole = f", whole {best[WHOLE.name] / best[WHOLE_PEER.name]:.2g}"
            judge("times scrapy-redis", version, fastest / best[PEER.name], OVER_PEER, whole)
        judge(
            "of the bare pipeline's requests/s, both by redis-py",
            version,
            fastest / best[BARE_REDIS_PY.name],
            OF_BARE,
        )
        judge("of the bare pipeline by Redis CPU", version, cpu[BARE.name] / least, OF_BARE)
    return [
        Target(what, f"≥ {goals[what]:,g}", "; ".join(values), reached[what])
        for what, values in told.items()
    ]
