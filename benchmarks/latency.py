"""How soon an idle fleet starts what is pushed, and how soon a fleet ends after its last page."""

from __future__ import annotations

import random
import statistics
import time

from benchmarks.common import Result, Target
from benchmarks.crawls.pages import Pages
from benchmarks.crawls.workers import Fleet
from lab.cluster import Cluster
from lab.servers import RedisServer, any_server, wait_until

START_SECONDS = 0.3
END_SECONDS = 3.0

COLUMNS = ["what", "samples", "median s", "max s"]


def push_to_download(server: RedisServer | Cluster, samples: int, workers: int) -> list[float]:
    """Seconds from the call of `Frontier.push` to the moment when the site is asked."""
    times = []
    settings = {"REDISQ_KEEP_ALIVE": True}
    with (
        Pages(1, links=0) as site,
        Fleet(server, workers, site, settings=settings) as fleet,
    ):
        fleet.begin()
        wait_until(lambda: site.hits, 60, f"the first page: {fleet.workers[0].log}")
        for number in range(samples):
            site.hits.clear()
            # Long enough for the workers to ask rarely, at any moment of their pause.
            time.sleep(1.0 + random.random())
            pushed_at = time.monotonic()
            fleet.frontier.push([f"{site.start_url}?sample={number}"])
            times.append(wait_until(lambda: site.hits, 10, "the download")[0].at - pushed_at)
    return times


def last_page_to_end(
    server: RedisServer | Cluster, samples: int, pages: int, workers: int, hosts: int = 1
) -> list[float]:
    """Seconds from the last page's request to the end of the last of all processes."""
    times = []
    with Pages(pages, links=20, delay=0.02, hosts=hosts) as site:
        for _ in range(samples):
            site.hits.clear()
            with Fleet(server, workers, site) as fleet:
                fleet.begin()
                fleet.reports(60)
                ended = time.monotonic()
            times.append(ended - site.hits[-1].at)
    return times


def run(*, quick: bool) -> Result:
    """Push into an idle fleet; let a fleet finish."""
    idle, ending = (1, 1) if quick else (2, 4)
    with RedisServer(any_server("redis-7")) as server:
        starts = push_to_download(server, 1 if quick else 20, idle)
        ends = last_page_to_end(server, 1 if quick else 5, 10 if quick else 300, ending)
    measured = {
        f"from a push to its download, {idle} idle workers": (starts, START_SECONDS),
        f"from the last page to the end of {ending} processes": (ends, END_SECONDS),
    }
    rows, targets = [], []
    for what, (times, limit) in measured.items():
        median, most = statistics.median(times), max(times)
        rows.append({"what": what, "samples": len(times), "median s": median, "max s": most})
        shown = f"{median:.2f} s, at most {most:.2f} s"
        targets.append(Target.at_most(what, most, limit, shown=shown, unit=" s"))
    note = (
        "Both are as the site and the operating system saw them: a process has ended when it "
        "is gone, pages are timed when the site is asked for them."
    )
    return Result("latency", "Waiting", COLUMNS, rows, targets=targets, notes=[note])
