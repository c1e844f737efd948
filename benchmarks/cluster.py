"""One worker on one server and on clusters, near and far; what it costs Redis."""

from __future__ import annotations

import functools
import time
from contextlib import ExitStack
from typing import Any

from benchmarks.common import Figures, Result, Target, alternating, cpu_of, medians, ratio
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import REDISQ_BLOOM, crawl
from lab.cluster import Cluster, masters
from lab.proxy import Proxy
from lab.servers import RedisServer, any_server, wait_until

HOSTS = 60
PAGES, ROUNDS = 400, 5

REST = 2.0
"""Seconds before each crawl in which the servers rest: of each of a cluster's nodes, which talk to
each other, that is as much work as ten pages a second are."""

LEAST = 1e-9
"""CPU seconds of a server that has used no more than when it rests."""

COLUMNS = ["masters", "round trip ms", "pages/s", "x one server", "end s", "CPU ms/page"]
COLUMNS += ["Redis CPU µs/page", "Redis CPU x", "scripts µs/page"]
COLUMNS += ["exchanges/page", "bytes/page", "busiest master x share"]


class Rig:
    """One server, or a cluster of so many masters."""

    def __init__(self, number: int, stack: ExitStack) -> None:
        binary = any_server("redis-7")
        self.nodes: RedisServer | Cluster
        if number:
            self.nodes = stack.enter_context(Cluster(binary, masters=number, node_timeout=30))
            self.servers = self.nodes.servers
        else:
            self.nodes = stack.enter_context(RedisServer(binary))
            self.servers = [self.nodes]
        self.url = self.nodes.url

    def used(self) -> list[Figures]:
        """What each server has used so far: CPU, seconds in scripts, bytes of its clients."""
        found = []
        for server in self.servers:
            with server.client() as client:
                info: dict[str, Any] = client.info("everything")
            script = info.get("cmdstat_evalsha", {"usec": 0})["usec"] / 1e6
            traffic = info["total_net_input_bytes"] + info["total_net_output_bytes"]
            found.append({"cpu": cpu_of(info), "script": script, "bytes": traffic})
        return found

    def move_away(self, stack: ExitStack) -> list[Proxy]:
        """From here on it is reached by proxies, one before each server. A cluster's nodes name the
        proxies' ports, as they would name addresses behind a NAT."""
        proxies = [stack.enter_context(Proxy(server.port)) for server in self.servers]
        ports = [proxy.port for proxy in proxies]
        if not isinstance(self.nodes, Cluster):
            self.url = self.nodes.url_through(ports[0])
            return proxies
        self.url = f"redis+cluster://127.0.0.1:{ports[0]}"
        for server, port in zip(self.servers, ports, strict=True):
            with server.client() as client:
                client.config_set("cluster-announce-port", port)

        def knows(server: RedisServer) -> bool:
            with server.client() as client:
                return set(masters(client).values()) == set(ports)

        wait_until(lambda: all(map(knows, self.servers)), 30, "all nodes know the ports")
        self.nodes.wait_until_in_order()
        return proxies

    def crawl(self, site: Pages) -> Figures:
        """One worker crawls the whole site.

        Pages/s are from the first to the last of them, as the site saw them; end: seconds from
        there to the end of the process. CPU is what the servers used from the start of the process
        to its end, without what they use when they rest; scripts: the time in EVALSHA, which is
        wall time. Raises `DidNotRun`.
        """
        self.nodes.flush()
        site.hits.clear()
        resting, began = self.used(), time.monotonic()
        time.sleep(REST)
        before, started = self.used(), time.monotonic()
        report = crawl(REDISQ_BLOOM, site, self.nodes, url=self.url)
        ended, after = time.monotonic(), self.used()
        as_long = (ended - started) / (started - began)
        cpu = [
            max(LEAST, now["cpu"] - then["cpu"] - as_long * (then["cpu"] - rest["cpu"]))
            for now, then, rest in zip(after, before, resting, strict=True)
        ]
        hits, pages = site.hits, site.pages

        def more(what: str) -> float:
            pairs = zip(after, before, strict=True)
            return sum(now[what] - then[what] for now, then in pairs)

        return {
            "pages/s": pages / (hits[-1].at - hits[0].at),
            "end s": ended - hits[-1].at,
            "Redis CPU µs/page": sum(cpu) * 1e6 / pages,
            "scripts µs/page": more("script") * 1e6 / pages,
            "exchanges/page": report["exchanges"] / pages,
            "bytes/page": more("bytes") / pages,
            "busiest master x share": max(cpu) * len(cpu) / sum(cpu),
            "CPU ms/page": report["cpu"] * 1000 / pages,
        }


def _rows(rigs: dict[int, Rig], round_trip: int, site: Pages, rounds: int) -> list[dict[str, Any]]:
    variants = {number: functools.partial(rig.crawl, site) for number, rig in rigs.items()}
    runs = alternating(variants, rounds)
    return [
        {
            "masters": number or "one server",
            "round trip ms": round_trip,
            "x one server": ratio(measured, runs[0], "pages/s"),
            "Redis CPU x": ratio(measured, runs[0], "Redis CPU µs/page"),
            **medians(measured),
        }
        for number, measured in runs.items()
    ]


def run(*, quick: bool) -> Result:
    """Crawl a site of many hosts with one worker."""
    pages, rounds = (10, 1) if quick else (PAGES, ROUNDS)
    layouts = (0, 1) if quick else (0, 1, 3)
    with ExitStack() as stack:
        rigs = {number: Rig(number, stack) for number in layouts}
        site = stack.enter_context(Pages(pages, links=20, hosts=HOSTS))
        rows = _rows(rigs, 0, site, rounds)
        if not quick:
            del rigs[1]
            proxies = [proxy for rig in rigs.values() for proxy in rig.move_away(stack)]
            for round_trip in 2, 20:
                for proxy in proxies:
                    proxy.round_trip = round_trip / 1000
                rows += _rows(rigs, round_trip, site, rounds)
    targets = []
    largest = rows[-1]["masters"]
    for row in rows:
        if row["masters"] == largest:
            where = f"one worker, {largest} masters beside one server, {row['round trip ms']} ms"
            targets += [
                Target.at_least(f"pages/s of {where}", row["x one server"], 0.95),
                Target.at_most(f"Redis CPU a page of {where}", row["Redis CPU x"], 1.15),
            ]
    return Result(
        "cluster",
        "One worker on a cluster",
        COLUMNS,
        rows,
        targets=targets,
        notes=[
            f"{pages} pages on {HOSTS} hosts, 20 links each to any of them; medians of {rounds} "
            "rounds, ratios of neighbours in time. Pages/s: from the first to the last request, as "
            "the site saw them; end: from there to the end of the process. CPU ms/page: of the "
            "worker. Redis CPU: user and system time of all servers, the network and the start of "
            f"the crawl included, without what they use when they rest ({REST:g} s before each "
            "crawl).",
        ],
    )
