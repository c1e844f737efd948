"""The frontier without Scrapy's engine, beside scrapy-redis' queue and a bare pipeline."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from typing import Any

from benchmarks.common import Figures, Result, Target, alternate, cpu_of
from benchmarks.crawls.workers import peers_python
from benchmarks.loads import peer_queue
from benchmarks.seen import backends
from lab.servers import RedisServer, any_server, binaries
from scrapy_redisq.server.embedded.binaries import bloom_module

REQUESTS = 50_000  # a second, on one Redis
OVER_PEER = 10.0
OF_BARE = 0.3

COLUMNS = ["what", "Redis", "clients", "requests/s", "Redis CPU µs", "of a core"]

OURS = {f"redisq {each}": {"job": "frontier", "backend": each} for each in backends()}
*_, BEST = OURS
WHOLE, PEER, BARE = f"{BEST}, whole", "scrapy-redis", "bare pipeline"
WHOLE_PEER, BARE_REDIS_PY = f"{PEER}, whole", f"{BARE}, redis-py"
JOBS: dict[str, dict[str, Any]] = {
    **OURS,
    WHOLE: {**OURS[BEST], "whole": True},
    PEER: {"job": "work"},
    WHOLE_PEER: {"job": "work", "whole": True},
    BARE_REDIS_PY: {"job": "redis-py"},
    BARE: {"job": "bare"},
}
"""What each variant is for its clients; ``work`` is the peer's."""

SERVERS = {
    version: kind
    for version, kind in {"7.0": "redis-7", "6.2": "redis-6"}.items()
    if kind in binaries()
} or {kind: kind for kind in list(binaries())[:1]}


class Clients:
    """Processes that do the same job at the same time; a context manager. They are started once and
    used again: starting one takes as long as a measurement."""

    def __init__(self, number: int, *, peer: bool) -> None:
        command = [sys.executable, "-m", "benchmarks.loads.load"]
        if peer:
            command = [str(peers_python()), peer_queue.__file__]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(number)
        ]

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def measure(
        self, server: RedisServer, number: int, job: dict[str, Any], seconds: float
    ) -> Figures:
        """Let ``number`` of them work side by side; the clock runs when all are ready."""
        told = {"whole": False, **job, "port": server.port, "seconds": seconds, "clients": number}
        chosen = self._processes[:number]
        with server.client() as client:
            client.flushall()
            for each, process in enumerate(chosen):
                _tell(process, json.dumps({**told, "client": each}))
            for process in chosen:
                _answer(process)
            before = cpu_of(client.info("cpu"))
            for process in chosen:
                _tell(process, "go")
            results = [json.loads(_answer(process)) for process in chosen]
            used = cpu_of(client.info("cpu")) - before
        requests = sum(result["requests"] for result in results)
        taken = max(result["seconds"] for result in results)
        return {
            "requests/s": requests / taken,
            "Redis CPU µs": used * 1e6 / requests,
            "of a core": used / taken,
        }


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a client ended in the midst of its work; its error stands above"
    return line


def run(*, quick: bool) -> Result:
    """Measure all variants with growing numbers of clients on each Redis of this machine."""
    numbers = (1,) if quick else (1, 2, 4, 8)
    seconds, rounds = (0.1, 1) if quick else (0.8, 3)
    jobs = {name: job for name, job in JOBS.items() if not (quick and job["job"] == "work")}
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        clients = {
            peer: stack.enter_context(Clients(numbers[-1], peer=peer))
            for peer in {job["job"] == "work" for job in jobs.values()}
        }
        for version, kind in list(SERVERS.items())[: 1 if quick else None]:
            server = RedisServer(any_server(kind), bloom=bloom_module() is not None)
            stack.enter_context(server)
            for number in numbers:
                variants = {
                    name: functools.partial(
                        clients[job["job"] == "work"].measure, server, number, job, seconds
                    )
                    for name, job in jobs.items()
                }
                rows += [
                    {"what": name, "Redis": version, "clients": number, **figures}
                    for name, figures in alternate(variants, rounds).items()
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
    found: dict[tuple[str, float], list[tuple[float, str]]] = defaultdict(list)
    for version in sorted({row["Redis"] for row in rows}, reverse=True):
        measured = defaultdict(list)
        for row in rows:
            if row["Redis"] == version:
                measured[row["what"]].append(row)
        best = {name: max(row["requests/s"] for row in some) for name, some in measured.items()}
        cpu = {name: min(row["Redis CPU µs"] for row in some) for name, some in measured.items()}
        fastest, least = max(best[name] for name in OURS), min(cpu[name] for name in OURS)
        values: dict[tuple[str, float], tuple[float, str]] = {
            ("requests/s on one Redis", REQUESTS): (
                fastest,
                f"{fastest:,.0f}, {1e6 / least:,.0f} by a full core",
            )
        }
        if PEER in best:
            times, whole = fastest / best[PEER], best[WHOLE] / best[WHOLE_PEER]
            values["times scrapy-redis", OVER_PEER] = times, f"{times:.2g}, whole {whole:.2g}"
        for what, share in (
            ("of the bare pipeline's requests/s, both by redis-py", fastest / best[BARE_REDIS_PY]),
            ("of the bare pipeline by Redis CPU", cpu[BARE] / least),
        ):
            values[what, OF_BARE] = share, f"{share:.2g}"
        for goal, (value, shown) in values.items():
            found[goal].append((value, f"{shown} (Redis {version})"))
    return [
        Target(
            what,
            f"≥ {wanted:,g}",
            "; ".join(shown for _, shown in values),
            all(value >= wanted for value, _ in values),
        )
        for (what, wanted), values in found.items()
    ]
