"""How soon an idle fleet starts what is pushed, and how soon a fleet ends after its last page."""

from __future__ import annotations

import random
import statistics
import time

from benchmarks.common import Result, Target
from benchmarks.site import Site
from benchmarks.workers import REDISQ_BLOOM, Folder, Worker
from scrapy_redisq import Frontier
from tests.harness.servers import RedisServer, any_server, wait_until

IDLE_WORKERS = 2
ENDING_WORKERS = 4
START_SECONDS = 0.3
END_SECONDS = 3.0

COLUMNS = ["what", "samples", "median s", "max s"]


def push_to_download(server: RedisServer, samples: int) -> list[float]:
    """Seconds from the call of `Frontier.push` to the moment when the site is asked."""
    times = []
    with Site(pages=1, links=0) as site, Folder() as folder, server.client() as client:
        client.flushall()
        fleet = [
            Worker(
                REDISQ_BLOOM,
                site.start_url,
                folder.path,
                redis_port=server.port,
                settings={"REDISQ_KEEP_ALIVE": True},
            )
            for _ in range(IDLE_WORKERS)
        ]
        try:
            with Frontier.from_url(server.url, "follow") as frontier:
                wait_until(
                    lambda: (
                        len(frontier.status().get("workers", [])) == IDLE_WORKERS and site.hits()
                    ),
                    60,
                    f"the first page: {fleet[0].log}",
                )
                for number in range(samples):
                    site.forget()
                    # Long enough for the workers to ask rarely, at any moment of their pause.
                    time.sleep(1.0 + random.random())
                    pushed_at = time.time()
                    frontier.push([f"{site.start_url}?sample={number}"])
                    wait_until(site.hits, 10, "the download")
                    times.append(site.hits()[0][0] - pushed_at)
        finally:
            for worker in fleet:
                worker.kill()
    return times


def last_page_to_end(server: RedisServer, samples: int, pages: int) -> list[float]:
    """Seconds from the last page's request to the end of the last of all processes."""
    times = []
    with Site(pages=pages, links=20, delay=0.02) as site, server.client() as client:
        for _ in range(samples):
            site.forget()
            client.flushall()
            with Folder() as folder:
                fleet = [
                    Worker(
                        REDISQ_BLOOM,
                        site.start_url,
                        folder.path,
                        redis_port=server.port,
                        go=folder.go,
                    )
                    for _ in range(ENDING_WORKERS)
                ]
                try:
                    with Frontier.from_url(server.url, "follow") as frontier:
                        wait_until(
                            lambda: len(frontier.status().get("workers", [])) == ENDING_WORKERS,
                            60,
                            f"{ENDING_WORKERS} workers: {fleet[0].log}",
                        )
                    folder.go.touch()
                    for worker in fleet:
                        worker.process.wait(60)
                    ended = time.time()
                finally:
                    for worker in fleet:
                        worker.kill()
            times.append(ended - site.hits()[-1][0])
    return times


def run(*, quick: bool) -> Result:
    """Push into an idle fleet; let a fleet finish."""
    server = RedisServer(any_server("redis-7"))
    try:
        starts = push_to_download(server, 5 if quick else 20)
        ends = last_page_to_end(server, 1 if quick else 5, 100 if quick else 300)
    finally:
        server.close()
    return Result(
        "latency",
        "Waiting",
        COLUMNS,
        [
            {
                "what": f"from a push to its download, {IDLE_WORKERS} idle workers",
                "samples": len(starts),
                "median s": statistics.median(starts),
                "max s": max(starts),
            },
            {
                "what": f"from the last page to the end of {ENDING_WORKERS} processes",
                "samples": len(ends),
                "median s": statistics.median(ends),
                "max s": max(ends),
            },
        ],
        targets=[
            _target("from a push to its download", starts, START_SECONDS),
            _target("from the last page to the end of all workers", ends, END_SECONDS),
        ],
        notes=[
            "Both are as the site and the operating system saw them: a process has ended when it "
            "is gone, pages are timed when the site is asked for them."
        ],
    )


def _target(what: str, times: list[float], limit: float) -> Target:
    return Target(
        what,
        f"<= {limit:g} s",
        f"{statistics.median(times):.2f} s, at most {max(times):.2f} s",
        max(times) <= limit,
    )
