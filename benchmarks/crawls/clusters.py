"""One server, or a cluster, near and far: what a crawl takes there, and what it costs Redis."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Figures, cpu_of
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import REDISQ_BLOOM, DidNotRun, Worker
from lab.cluster import Cluster, masters
from lab.proxy import Proxy
from lab.servers import RedisServer, any_server, wait_until

KIND = "redis-7"
LEAST = 1e-9
"""CPU seconds of a server that has used no more than one that rests."""


@dataclass(frozen=True)
class Used:
    """What servers have used: CPU seconds of each, and of one that rests (the mean of several);
    scripts and the seconds in them, and bytes of their clients."""

    cpu: list[float]
    rested: float
    exchanges: float
    script: float
    bytes: float

    def since(self, before: Used) -> Used:
        """The same between two moments, without what a server uses when it rests."""
        rested = self.rested - before.rested
        return Used(
            [
                max(LEAST, now - then - rested)
                for now, then in zip(self.cpu, before.cpu, strict=True)
            ],
            rested,
            self.exchanges - before.exchanges,
            self.script - before.script,
            self.bytes - before.bytes,
        )


class Rig:
    """One server, or a cluster: its masters are ``servers``. ``resting`` are servers of the same
    kind that do nothing: of each of a cluster's nodes, which talk to each other, that is as much
    work as ten pages a second are."""

    def __init__(
        self,
        servers: Sequence[RedisServer],
        resting: Sequence[RedisServer],
        cluster: Cluster | None = None,
    ) -> None:
        self.servers = servers
        self.cluster = cluster
        self.url = cluster.url if cluster else servers[0].url
        self._resting = resting

    def flush(self) -> None:
        for server in self.servers:
            server.flush()

    def used(self) -> Used:
        """What its servers have used so far."""
        cpu, calls, script, traffic = [], 0, 0.0, 0
        for server in self.servers:
            with server.client() as client:
                info: dict[str, Any] = client.info("everything")
            cpu.append(cpu_of(info))
            evalsha = info.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
            calls += evalsha["calls"]
            script += evalsha["usec"] / 1e6
            traffic += info["total_net_input_bytes"] + info["total_net_output_bytes"]
        rested = []
        for server in self._resting:
            with server.client() as client:
                rested.append(cpu_of(client.info("cpu")))
        return Used(cpu, statistics.mean(rested), calls, script, traffic)

    @contextmanager
    def away(self, milliseconds: float) -> Iterator[str]:
        """The URL at which each of its servers is so far away; of a cluster all nodes name the
        ports of proxies, as they would name addresses behind a NAT."""
        if not milliseconds:
            yield self.url
            return
        with ExitStack() as stack:
            proxies = [stack.enter_context(Proxy(server.port)) for server in self.servers]
            for proxy in proxies:
                proxy.round_trip = milliseconds / 1000
            ports = [proxy.port for proxy in proxies]
            if self.cluster is None:
                yield f"redis://127.0.0.1:{ports[0]}/0"
                return
            stack.callback(self._announce, [0] * len(ports))
            self._announce(ports)
            yield f"redis+cluster://127.0.0.1:{ports[0]}"

    def _announce(self, ports: list[int]) -> None:
        """Let the nodes name these ports in place of their own, 0 for their own."""
        for server, port in zip(self.servers, ports, strict=True):
            with server.client() as client:
                client.config_set("cluster-announce-port", port)
        named = {port or server.port for server, port in zip(self.servers, ports, strict=True)}

        def all_name_them() -> bool:
            maps = []
            for server in self.servers:
                with server.client() as client:
                    maps.append(set(masters(client).values()))
            return all(known == named for known in maps)

        wait_until(all_name_them, 30, "all nodes know the ports")
        assert self.cluster is not None
        self.cluster.wait_until_in_order()


@contextmanager
def rigs(*numbers: int, quick: bool = False) -> Iterator[dict[int, Rig]]:
    """Clusters of so many masters each; 0: one server that is no cluster. Beside each rests one of
    the same size; ``quick``: to be made soon, a server that is no cluster's node."""
    with ExitStack() as stack:

        def server() -> RedisServer:
            made = RedisServer(any_server(KIND))
            stack.callback(made.close)
            return made

        def cluster(masters: int) -> Cluster:
            return stack.enter_context(Cluster(any_server(KIND), masters=masters, node_timeout=30))

        made = {}
        for number in numbers:
            if number:
                nodes = cluster(number)
                resting = [server()] if quick else cluster(number).servers[:number]
                made[number] = Rig(nodes.servers[:number], resting, nodes)
            else:
                made[number] = Rig([server()], [server()])
        yield made


def crawl(rig: Rig, url: str, site: Pages) -> Figures:
    """One worker crawls the whole site.

    Pages/s are from the first to the last of them, as the site saw them; end: seconds from there to
    the end of the process. CPU is what the servers used from the start of the process to its end,
    without what they use when they rest; scripts: the time in EVALSHA, which is wall time. Raises
    `DidNotRun`.
    """
    rig.flush()
    site.forget()
    before = rig.used()
    with tempfile.TemporaryDirectory(prefix="redisq-bench-") as folder:
        report = Worker(
            REDISQ_BLOOM,
            site.start_url,
            Path(folder),
            settings={"REDISQ_URL": url},
            arguments={"hosts": site.hosts},
        ).report()
    ended = time.monotonic()
    used = rig.used().since(before)
    hits = site.hits()
    pages = report["pages"]
    if pages != site.pages:
        raise DidNotRun(f"{pages} of {site.pages} pages were fetched")
    return {
        "pages/s": pages / (hits[-1].at - hits[0].at),
        "end s": ended - hits[-1].at,
        "Redis CPU µs/page": sum(used.cpu) * 1e6 / pages,
        "scripts µs/page": used.script * 1e6 / pages,
        "exchanges/page": report["exchanges"] / pages,
        "bytes/page": used.bytes / pages,
        "busiest master x share": max(used.cpu) * len(used.cpu) / sum(used.cpu),
        "CPU ms/page": report["cpu"] * 1000 / pages,
    }
