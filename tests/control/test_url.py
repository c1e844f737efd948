"""What became of a URL: wherever its request may be, with each dupefilter; forgotten, fetched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from lab.servers import RedisServer
from scrapy_redisq.control import Frontier
from scrapy_redisq.control import urls as urls_module
from scrapy_redisq.control.seeds import SeedReader
from scrapy_redisq.errors import FrontierError
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.config import FrontierConfig
from tests.harness.command import Redisq
from tests.harness.worker import EXACT, NAME, Make, Worker, ask

HOST = "a.example"
URL = f"https://{HOST}/search?q=books&page=7"
SAME = f"https://{HOST}/search?page=7&q=books#top"


def send(worker: Worker, url: str = URL, **options: Any) -> None:
    """As a worker does: with its entry, and its fingerprint."""
    entry = SeedReader().read(url).entry
    item = worker.request(url, slot=HOST, entry=entry, **options)
    known_by = worker.seen.encode(fingerprint(Request(url)))
    worker.sessions[0].add(type(item)(item.slot, item.priority, entry, known_by, item.delay))
    ask(worker, 0)


@pytest.mark.servers("ends")
def test_a_request_on_its_way(frontier: Frontier, member: Make, each_server: RedisServer) -> None:
    """Not asked for, queued, leased, delayed, dead and done; another way of writing the same URL is
    the same one, another one is not."""
    with pytest.raises(FrontierError, match="no frontier"):
        frontier.url(URL)
    worker = member()
    assert frontier.url(URL)["state"] == "unknown"
    for n in range(3):
        send(worker, f"{URL}{n}")
    send(worker)
    told = frontier.url(SAME)
    may_look = told["looked_through"]
    with each_server.client() as client:
        assert may_look == (not client.info("server")["redis_version"].startswith("6."))
    if may_look:
        assert (told["state"], told["before"], told["priority"]) == ("queued", 3, 0)
    assert (told["seen"], told["certain"], told["slot"]) == (True, True, HOST)
    assert frontier.url(f"{URL}9")["state"] == "unknown"
    leases = worker.claim(4)
    told = frontier.url(SAME)
    assert (told["state"], told["worker"]) == ("leased", worker.id)
    assert told["since"] > "2020"
    worker.finish(leases[3], "retried", entry=leases[3].entry, delay=60_000)
    ask(worker, 0)
    told = frontier.url(SAME)
    assert told["state"] == "delayed"
    assert 50 < told["due_in"] <= 60
    worker.finish(leases[0], "dead", reason="retries")
    worker.finish(leases[1])
    ask(worker, 0)
    told = frontier.url(f"{URL}0")
    assert (told["state"], told["letter"], told["reason"]) == ("dead", "0-1", "retries")
    assert frontier.url(f"{URL}1")["state"] == "seen"
    assert frontier.url(f"{URL}1")["looked_through"] == may_look


@pytest.mark.servers("ends")
def test_bloom_filters(each_server: RedisServer) -> None:
    """They say probably, and cannot forget."""
    config = FrontierConfig(dupefilter="bloom", capacity=1_000)
    with Frontier.from_url(each_server.url, NAME, config=config) as frontier:
        frontier.push([URL, *(f"{URL}{n}" for n in range(1_200))])
        for url in (SAME, f"{URL}0", f"{URL}1199"):
            told = frontier.url(url)
            assert (told["seen"], told["certain"]) == (True, False)
        told = frontier.url("https://a.example/no")
        assert (told["seen"], told["certain"], told["state"]) == (False, True, "unknown")
        with pytest.raises(FrontierError, match="Bloom filter and cannot forget"):
            frontier.forget(URL)
        with pytest.raises(FrontierError, match="ExactDupeFilter can"):
            frontier.forget_host(HOST)


def test_forget(frontier: Frontier, worker: Worker) -> None:
    """The next link to it is new; others are not; also after buckets were split, and a start
    request."""
    many = [f"https://{HOST}/{n}" for n in range(500)]
    frontier.push(many)
    assert frontier.status()["seen"] == 500
    assert all(frontier.forget(url) for url in many[::50])
    assert frontier.status()["seen"] == 490
    assert not frontier.forget(many[0])
    assert [frontier.url(url)["seen"] for url in many[::25]] == [False, True] * 10
    assert frontier.push([many[0], many[1]]).accepted == 1
    start = {"identity": fingerprint(Request(URL)), "asked": calls.STARTS}
    worker.send([URL], slot=HOST, filtered=False, **start)
    assert frontier.url(URL)["seen"]
    assert frontier.forget(URL)
    assert frontier.url(URL)["seen"] is False
    assert frontier.push([URL], every="1d").accepted == 1
    assert frontier.push([URL], every="1d").accepted == 0
    assert frontier.forget(URL)
    assert frontier.push([URL], every="1d").accepted == 1


def test_pushed_with_a_ttl(
    frontier: Frontier, member: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its URL is new once a period, and seen for all that say no TTL. What comes again is pushed
    once, whatever the dupefilter forgets. A TTL that is none is refused."""
    worker = member(seen_ttl=3_600.0)
    now = 1_700_000_000.0
    monkeypatch.setattr("scrapy_redisq.serialization.recurrence.time.time", lambda: now)
    aging = {"url": URL, "meta": {"redisq_seen_ttl": "10m"}}
    assert frontier.push([aging, aging, URL]).accepted == 1
    assert frontier.url(URL)["seen"]
    accepted = []
    for _ in range(4):
        now += 300
        accepted.append(frontier.push([aging]).accepted)
    assert accepted in ([1, 0, 1, 0], [0, 1, 0, 1])
    assert frontier.push([f"{URL}0"], every="1d").accepted == 1
    worker.client.hincrby("redisq:{books:0}:meta", "behind", 8_000_000_000)
    assert frontier.push([f"{URL}0"], every="1d").accepted == 0
    assert frontier.push([URL]).accepted == 1
    (error,) = frontier.push([{**aging, "meta": {"redisq_seen_ttl": 0}}]).errors
    assert "redisq_seen_ttl" in error[1]


def test_fetch_again(frontier: Frontier, worker: Worker) -> None:
    """What waits is left alone, a dead letter is requeued, what was done is pushed once more."""
    send(worker)
    (lease,) = worker.claim(1)
    assert frontier.fetch_again(URL)["how"] == "waits"
    worker.finish(lease, "dead", reason="download")
    ask(worker, 0)
    assert frontier.fetch_again(SAME)["how"] == "requeued"
    (lease,) = worker.claim(1)
    worker.finish(lease)
    ask(worker, 0)
    assert frontier.fetch_again(URL)["how"] == "pushed"
    (lease,) = worker.claim(1)
    assert frontier.url(URL)["state"] == "leased"


def test_a_search_has_an_end(
    frontier: Frontier, member: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how far it came, and that this was not all; a text that all have finds nothing."""
    worker = member()
    for n in range(1_200):
        worker.enqueue(f"https://{HOST}/{n}", slot=HOST, delay=60_000)
    for _ in range(4):
        ask(worker, 0)
    told = frontier.url(f"https://{HOST}/")
    assert (told["state"], told["looked_through"]) == ("unknown", told["looked_at"] >= 1_200)
    monkeypatch.setattr(urls_module, "MOST_LOOKED_AT", 600)
    told = frontier.url(f"https://{HOST}/")
    assert not told["looked_through"]
    assert 600 <= told["looked_at"] < 1_200


def test_command(redisq: Redisq, redis_server: RedisServer) -> None:
    """For people and as JSON; forget and fetch say what was done; what is no URL is refused."""
    assert redisq("url", NAME, URL).code == 1
    with Frontier.from_url(redis_server.url, NAME, config=EXACT) as frontier:
        frontier.push([URL, f"{URL}0"])
    told = json.loads(redisq("url", NAME, SAME, "--json").out)
    assert (told["frontier"], told["state"], told["before"]) == (NAME, "queued", 0)
    said = redisq("url", NAME, f"{URL}0").out
    assert said.startswith("queued  ")
    assert "behind 1 others" in said
    assert "nothing was done" in redisq("url", NAME, URL, "--fetch").out
    assert redisq("url", NAME, URL, "--forget").out.endswith("counts as never seen\n")
    again = redisq("url", NAME, "--forget", "--json", URL)
    assert (again.code, again.out, "has not been seen" in again.err) == (1, "", True)
    both = redisq("url", NAME, URL, f"{URL}0", "--forget", "--json")  # of one it was told before
    assert (both.code, both.err.count("has not been seen")) == (1, 1)
    told = json.loads(both.out)
    assert (told["frontier"], told["forgotten"], told["seen"]) == (NAME, True, False)
    assert "unknown" in redisq("url", NAME, "https://never.example/").out
    bad = redisq("url", NAME, "nonsense")
    assert (bad.code, bad.err.count("\n")) == (1, 1)
    assert redisq("url", NAME, URL, "--forget", "--fetch").code == 2
    for wrong in ([], ["--forget"], [URL, "--forget", "--host", HOST], ["--host", HOST]):
        ran = redisq("url", NAME, *wrong)
        assert (ran.code, "--forget --host" in ran.err) == (2, True)
    ran = redisq("url", NAME, "--forget", "--host", HOST)
    assert (ran.code, "REDISQ_HISTORY" in ran.err) == (1, True)
