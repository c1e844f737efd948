"""Starting and closing while something else happens."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from lab.servers import wait_until
from lab.site import linked_pages
from scrapy_redisq.frontier.config import FORMAT
from tests.faults.oracle import assert_quiet, assert_survived
from tests.faults.rig import MOST_LEASES, PASSWORD, Rig, line_with
from tests.harness.crawl import Crawl


@pytest.mark.full
@pytest.mark.parametrize(("begun", "late"), [("0", None), (None, "0"), (None, "2")])
def test_release_with_another_format(rig: Rig, begun: str | None, late: str | None) -> None:
    """Two workers of which one runs a release with another format: the second one is refused."""

    def release(number: str | None) -> dict[str, str]:
        return {"FAULT_FORMAT": number} if number else {}

    rig.set_up(pages=300, delay=0.1)
    first = rig.worker(environment=release(begun))
    first.wait_for(" run ")
    second = rig.worker(environment=release(late)).wait()
    rig.refused.append(second)
    there, here = begun or str(FORMAT), late or str(FORMAT)
    assert f"'fault' has format {there}, this release of scrapy-redisq reads format {here}" in (
        second.log
    )
    assert second.reason != "finished"
    assert first.running
    rig.finish()
    with rig.server.client() as client:  # for this release to look at what is left
        client.hset("redisq:{fault:0}:meta", "format", FORMAT)
    assert_survived(rig, refetch=0)


@pytest.mark.full
def test_signals_during_start(rig: Rig) -> None:
    """SIGTERM at any moment of the start: it ends soon, and leaves no worker behind."""
    rig.set_up(pages=100, ttl=60)
    proxy = rig.proxy()
    proxy.round_trip = 0.2
    for _ in range(int(rig.size.pick(6, 40))):
        worker = rig.worker(url=rig.server.url_through(proxy.port))
        rig.gone.append(worker)
        wait_until(lambda worker=worker: "Scrapy" in worker.log, 20, "it has begun")
        rig.stay(rig.random.uniform(0, 2))
        worker.terminate()
        worker.wait(20)
        assert worker.process.returncode in (0, -15), worker.log
        status = rig.status()
        assert (status["workers"], status["leased"]) == ([], 0), worker.log
    assert_quiet(rig)
    rig.worker()
    rig.finish()
    assert_survived(rig, refetch=None)


@pytest.mark.full
def test_signals_during_close(rig: Rig) -> None:
    """A second SIGTERM while the worker obeys the first: at most its pages are fetched again."""
    runs = int(rig.size.pick(2, 8))
    rig.set_up(pages=2_000, delay=0.3, ttl=2)
    for _ in range(runs):
        worker = rig.worker()
        rig.gone.append(worker)
        worker.wait_for(" run ")
        rig.wait_for_flow(10)
        rig.stay(0.5)
        worker.terminate()
        rig.stay(rig.random.uniform(0, 0.5))
        worker.terminate()
        worker.wait(20)
    rig.fleet(settings={"CONCURRENT_REQUESTS_PER_DOMAIN": 16})
    rig.finish()
    assert_survived(rig, refetch=runs * MOST_LEASES)


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "cut"])
def test_close_without_redis(rig: Rig, how: str) -> None:
    """Redis is gone while a worker closes: it ends within REDISQ_CLOSE_TIMEOUT."""
    rig.set_up(pages=600, delay=0.05, aof=True, REDISQ_CLOSE_TIMEOUT=3)
    proxy = rig.proxy()
    worker = rig.worker(url=rig.server.url_through(proxy.port))
    rig.wait_for_pages(0.2)
    if how == "killed":
        rig.server.kill()
    else:
        proxy.cut()
    worker.wait_for("Redis is away")
    rig.gone.append(worker)
    worker.terminate()
    worker.wait(30)
    closing, _ = line_with(worker.log, "Closing spider (shutdown)")
    closed, _ = line_with(worker.log, "Spider closed (shutdown)")
    rig.measured["seconds"] = closed - closing
    assert rig.measured["seconds"] < 3 + 1.5
    assert worker.process.returncode == 0
    assert worker.reason == "shutdown"
    assert "REDISQ_CLOSE_TIMEOUT (3 s)" in worker.log
    assert worker.stats["redisq/unsent"] > 0
    if how == "killed":
        rig.server.start()
    else:
        proxy.mend()
    rig.worker()
    rig.finish()
    assert_survived(rig, refetch=MOST_LEASES)


def memory_of(worker: Crawl) -> int:
    """Resident memory in bytes."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.full
def test_outbox_is_bounded(rig: Rig) -> None:
    """The outbox reaches its bound while Redis is away: no page is started, memory stays flat."""
    links, most = 200, 1_000
    pages = linked_pages(50_000, links=links, delay=0.2)
    rig.set_up(pages=50_000, page=pages, ttl=300, REDISQ_MAX_OUTBOX=most)
    worker = rig.worker()
    wait_until(lambda: len(rig.site.hits) >= 50, 30, "pages")
    rig.server.signal(signal.SIGSTOP)
    wait_until(lambda: rig.warnings(worker, "Redis is away"), 30, "it is noticed")
    rig.stay(1)  # what was being downloaded has arrived
    hits, memory = len(rig.site.hits), memory_of(worker)
    rig.stay(rig.size.pick(5, 60), lambda: len(rig.site.hits) == hits)
    rig.measured["memory"] = grown = memory_of(worker) - memory
    assert grown < 2_000_000
    rig.server.signal(signal.SIGCONT)
    rig.wait_for_flow(10)
    rig.gone.append(worker)
    worker.terminate()
    worker.wait()
    assert worker.process.returncode == 0
    fetched = {hit.path for hit in rig.site.hits}
    found = {"/0"} | {
        href for path in fetched for href in re.findall(r'"(/\d+)"', pages(path).body)
    }
    status = rig.status()
    assert (status["created"], status["finished"]) == (len(found), len(fetched))
    assert len(rig.site.hits) == len(fetched)
    assert PASSWORD not in worker.log
    assert "Traceback" not in worker.log
