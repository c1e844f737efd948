"""Starting and closing while something else happens."""

from __future__ import annotations

import pytest

from lab.servers import wait_until
from tests.faults.oracle import assert_quiet, assert_survived
from tests.faults.rig import MOST_LEASES, Rig


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
