"""What the API tells of a frontier, and what it changes there."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import redis

from lab.servers import RedisServer, any_server, wait_until
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.names import meta_key
from tests.dashboard.served import Served
from tests.harness.command import Redisq
from tests.harness.worker import EXACT, NAME, Worker, ask

CRAWL = f"/api/crawls/{NAME}"
MARKUP = '<img src=x onerror="alert(1)">'


def hosts(dashboard: Served, **query: Any) -> list[str]:
    return [host["slot"] for host in dashboard.get(f"{CRAWL}/hosts?{urlencode(query)}")["hosts"]]


@pytest.fixture
def worker(one_client: redis.Redis) -> Worker:
    return Worker(one_client, NAME, EXACT)


def test_overview(dashboard: Served, frontier: Frontier) -> None:
    """Every frontier with its status, why little happens, and its rates; one that cannot be read
    does not hide the others; the servers."""
    assert dashboard.get("/api/crawls")["crawls"] == []
    frontier.push(["https://a.example/", "https://b.example/"])
    frontier.client.hset("redisq:{broken:0}:meta", "format", "99")
    dashboard.crawls.names.forget()
    told = dashboard.get("/api/crawls")
    (crawl,) = told["crawls"]
    assert (crawl["frontier"], crawl["queued"], crawl["state"]) == (NAME, 2, "stopped")
    assert crawl["why"]["reason"] == "no_workers"
    assert (crawl["pages_per_minute"], crawl["left"], crawl["recent"]) == (0, None, [])
    assert list(told["problems"]) == ["broken"]
    (server,) = told["servers"]
    assert server["used"] > 0
    one = dashboard.get(CRAWL)
    assert (one["queued"], 0 <= crawl["age"] <= told["age"], one["age"] >= 0) == (2, True, True)
    assert dashboard.get("/api/servers")["servers"][0]["address"] == server["address"]


def test_crawls_share_connections(dashboard: Served, one_client: redis.Redis) -> None:
    """However many crawls are looked at, and names scaled by."""
    for number in range(12):
        with Frontier.from_url(dashboard.redis, f"crawl{number}") as frontier:
            frontier.push([f"https://{number}.example/"])
    before = len(one_client.client_list())
    for number in range(12):
        assert dashboard.get(f"/api/crawls/crawl{number}")["queued"] == 1
        dashboard.get(f"/scale/made-up-{number}")
    assert len(one_client.client_list()) < before + 12


def test_names_that_are_none(dashboard: Served) -> None:
    """No frontier is made, or kept, for whatever is asked for."""
    for name in ("nothing", quote(MARKUP, safe=""), "a%00b", "%ff", "x" * 5_000, "{a}"):
        answer = dashboard.ask(f"/api/crawls/{name}")
        assert (answer.status, list(answer.json)) == (404, ["error"])
    for path in ("hosts", "doctor"):
        assert dashboard.ask(f"/api/crawls/nothing/{path}").status == 404


def test_a_frontier_that_is_reset(dashboard: Served, frontier: Frontier) -> None:
    """Who looks at it is told; a new one of that name is shown again."""
    frontier.push(["https://a.example/"])
    assert dashboard.get(CRAWL)["state"] == "stopped"
    frontier.reset()
    dashboard.forget()
    assert dashboard.get(CRAWL)["state"] == "absent"
    assert hosts(dashboard) == []
    assert dashboard.get(f"{CRAWL}/dead")["total"] == 0
    assert dashboard.get(f"{CRAWL}/series")["samples"] == []
    pause = {"action": "pause", "hosts": ["a"]}
    assert dashboard.ask(f"{CRAWL}/hosts", pause, dashboard.token).status == 409


def test_hosts(dashboard: Served, frontier: Frontier) -> None:
    """Sorted, filtered, in pages; with what waits by priority."""
    for n in range(5):
        frontier.push({"url": f"https://h{n}.example/{k}", "priority": k % 2} for k in range(n + 1))
    frontier.pause("h1.example")
    wait_until(lambda: dashboard.get(f"{CRAWL}/hosts")["complete"], 10, "the list")
    assert hosts(dashboard) == [f"h{n}.example" for n in (4, 3, 2, 1, 0)]
    assert hosts(dashboard, sort="slot", limit=2, offset=2) == ["h2.example", "h3.example"]
    assert hosts(dashboard, sort="slot", order="desc", limit=1) == ["h4.example"]
    assert hosts(dashboard, q=" H3.") == ["h3.example"]
    assert hosts(dashboard, state="trouble") == hosts(dashboard, state="paused") == ["h1.example"]
    told = dashboard.get(f"{CRAWL}/hosts?limit=1")
    assert (told["total"], told["known"], told["counts"]["paused"]) == (5, 5, 1)
    assert told["queued"] == sum(range(1, 6))
    assert told["hosts"][0]["queued"] == 5
    one = dashboard.get(f"{CRAWL}/hosts/h4.example")
    assert one["priorities"] == [{"priority": 1, "queued": 2}, {"priority": 0, "queued": 3}]
    for wrong in ("sort=x", "state=x", "limit=-1", "offset=x", "limit=9999999"):
        assert dashboard.ask(f"{CRAWL}/hosts?{wrong}").status == 400


@pytest.mark.parametrize("slot", ["", "{a}", "{", "a/b", "%7B", "a b?#", "Ü", "..x", MARKUP])
def test_a_host_of_any_name(dashboard: Served, frontier: Frontier, slot: str) -> None:
    """It is found by it, and ruled."""
    frontier.push([{"url": "https://a.example/", "meta": {"download_slot": slot}}])
    one = dashboard.get(f"{CRAWL}/hosts/{quote(slot, safe='')}")
    assert (one["slot"], one["queued"]) == (slot, 1)
    wait_until(lambda: hosts(dashboard, q=slot) == [slot], 10, "the list")  # it may be a second old
    assert dashboard.post(f"{CRAWL}/hosts", {"action": "pause", "hosts": [slot]})["changed"] == 1
    assert dashboard.get(f"{CRAWL}/hosts/{quote(slot, safe='')}")["states"] == ["paused"]


def test_ruling_hosts(dashboard: Served, frontier: Frontier) -> None:
    """One, or all that match, which are those of the list, unless more match than were counted; it
    is seen in the list at once. A limit is no host's if it is a pattern's."""
    frontier.push(f"https://{name}.{n}.example/" for name in ("shop", "blog") for n in range(3))
    change = f"{CRAWL}/hosts"
    assert dashboard.post(change, {"action": "pause", "match": {"q": "shop"}})["changed"] == 3
    assert len(hosts(dashboard, state="paused")) == 3
    assert dashboard.post(change, {"action": "resume", "hosts": ["shop.0.example"]})["changed"] == 1
    assert len(hosts(dashboard, state="paused")) == 2
    limit = {"action": "limit", "match": {"q": "blog"}, "delay": "2.5", "rate": "30/m"}
    assert dashboard.post(change, limit)["changed"] == 3
    assert frontier.slot("blog.1.example").limit.delay == 2.5
    assert hosts(dashboard, state="limited", sort="slot") == [f"blog.{n}.example" for n in range(3)]
    dashboard.post(change, {"action": "unlimit", "match": {"state": "limited"}})
    assert hosts(dashboard, state="limited") == []
    drop = {"action": "drop", "match": {"q": "blog"}, "most": 2}
    refused = dashboard.ask(change, drop)
    assert (refused.status, refused.json) == (400, {"error": "3 match by now, not 2: look again"})
    assert frontier.status()["dropped"] == 0
    limit = {"action": "limit", "hosts": ["*.example"], "delay": 1}
    assert "REDISQ_SLOT_LIMITS" in dashboard.ask(change, limit).json["error"]
    dropped = dashboard.post(change, {**drop, "most": 3})
    assert dropped == {"changed": 3, "dropped": 3}
    assert frontier.status()["dropped"] == 3
    last = dashboard.get(f"{CRAWL}/actions")["actions"][0]
    assert (last["by"], last["what"], last["number"]) == ("dashboard", "drop", 3)
    assert last["on"] == "hosts with 'blog' in their name"


def test_dead_letters(
    dashboard: Served, frontier: Frontier, redisq: Redisq, worker: Worker
) -> None:
    """Grouped and filtered by the same; one with its request; the file is that of ``dead export``;
    tried again or deleted are those that match, unless these are more than were counted, or the
    named one."""
    frontier.push(
        {"url": f"https://{host}.example/{n}", "headers": {"X": MARKUP}}
        for host in ("a", "b")
        for n in range(3)
    )
    for reason in ("spider_error", "download"):
        for lease in ask(worker, 3).leases:
            worker.finish(lease, "dead", reason=reason)
    ask(worker, 0)
    told = dashboard.get(f"{CRAWL}/dead")
    assert told["total"] == 6
    by_reason = {group["value"]: group["count"] for group in told["groups"]["reason"]}
    assert by_reason == {"spider_error": 3, "download": 3}
    first = told["letters"][0]
    one = dashboard.get(f"{CRAWL}/dead/{first['id']}")
    assert one["request"]["headers"]["X"] in (MARKUP, [MARKUP])
    assert dashboard.ask(f"{CRAWL}/dead/0-999").status == 404
    assert dashboard.ask(f"{CRAWL}/dead/x").status == 400
    some = dashboard.get(f"{CRAWL}/dead?reason=download&limit=2")
    assert (some["total"], len(some["letters"])) == (3, 2)
    assert sum(group["count"] for group in some["groups"]["slot"]) == 3
    exported = dashboard.ask(f"{CRAWL}/dead/export").body.decode()
    assert exported == redisq("dead", "export", NAME, "-").out
    lines = dashboard.ask(f"{CRAWL}/dead/export?reason=download").body.decode().splitlines()
    assert len(lines) == 3

    change = f"{CRAWL}/dead"
    match = {"reason": "download"}
    assert dashboard.post(change, {"action": "requeue", "match": match}) == {"changed": 3}
    assert frontier.status()["queued"] == 3
    named = {"action": "purge", "ids": [dashboard.get(change)["letters"][0]["id"], "0-999"]}
    assert dashboard.post(change, named) == {"changed": 1}
    purge = {"action": "purge", "match": {}, "most": 1}
    refused = dashboard.ask(change, purge)
    assert (refused.status, refused.json) == (400, {"error": "2 match by now, not 1: look again"})
    assert dashboard.post(change, {**purge, "most": 2}) == {"changed": 2}
    assert dashboard.get(change)["total"] == 0


def test_urls(dashboard: Served, frontier: Frontier) -> None:
    """Pushed with what is wrong with each; what became of one; fetched again, forgotten where the
    dupefilter can."""
    url = "https://a.example/<b>"
    frontier.push(["https://a.example/"])
    pushed = dashboard.post(f"{CRAWL}/push", {"requests": [url, url, "no url", {"url": 7}]})
    assert (pushed["accepted"], pushed["duplicates"]) == (1, 1)
    assert [number for number, _ in pushed["errors"]] == [3, 4]
    query = urlencode({"url": url})
    assert dashboard.get(f"{CRAWL}/url?{query}")["state"] == "queued"
    again = dashboard.post(f"{CRAWL}/url", {"action": "fetch", "url": url})
    assert again["how"] == "waits"
    forget = {"action": "forget", "url": url}
    refused = dashboard.ask(f"{CRAWL}/url", forget, dashboard.token)
    assert (refused.status, "cannot forget" in refused.json["error"]) == (409, True)
    assert dashboard.ask(f"{CRAWL}/url?url=nothing").status == 400
    frontier.reset()
    with Frontier.from_url(dashboard.redis, NAME, config=EXACT) as exact:
        exact.push([url])
    told = dashboard.post(f"{CRAWL}/url", forget)
    assert (told["forgotten"], told["seen"]) == (True, False)


def test_pushes_do_not_wait_for_room(dashboard: Served, frontier: Frontier) -> None:
    """Each would keep a thread, until nothing is shown to anybody and the process never ends."""
    frontier.push(["https://a.example/1", "https://a.example/2"])
    frontier.client.hset(meta_key(NAME, 0), "max_pending", 1)
    began = time.monotonic()
    for path, body in (
        ("push", {"requests": ["https://a.example/3"]}),
        ("url", {"action": "fetch", "url": "https://a.example/4"}),
    ):
        answer = dashboard.ask(f"{CRAWL}/{path}", body, dashboard.token)
        assert (answer.status, "room" in answer.json["error"]) == (409, True)
    assert (frontier.status()["created"], time.monotonic() - began < 10) == (2, True)


def test_telling_workers(dashboard: Served, worker: Worker) -> None:
    """One or all; the list says what they were told."""
    change = f"{CRAWL}/workers"
    assert dashboard.post(change, {"action": "quiet", "ids": [worker.id]}) == {"changed": 1}
    assert dashboard.get(CRAWL)["workers"][0]["told"] == "quiet"
    assert dashboard.post(change, {"action": "work", "all": True}) == {"changed": 1}
    for wrong in ({"action": "quiet"}, {"action": "quiet", "ids": ["x"], "all": True}):
        assert dashboard.ask(change, wrong, dashboard.token).status == 400


def test_the_past(dashboard: Served, worker: Worker) -> None:
    """Samples of a resolution, and marks beside them; memory by part; what was finished."""
    worker.enqueue("https://a.example/")
    ask(worker, 0)
    told = dashboard.get(f"{CRAWL}/series?resolution=120")
    assert told["resolution"] == 120
    assert [mark["kind"] for mark in told["marks"]] == ["began"]
    assert dashboard.ask(f"{CRAWL}/series?resolution=7").status == 400
    assert dashboard.get(f"{CRAWL}/memory")["parts"]["queues"]["keys"] > 0
    assert dashboard.get(f"{CRAWL}/history?limit=5") == {"finished": []}


def test_a_server_that_goes_away() -> None:
    """Requests are answered with 503, and go on when it is back."""

    def statuses() -> set[int]:
        return {served.ask(path).status for path in (CRAWL, "/api/crawls", f"{CRAWL}/hosts")}

    with (
        RedisServer(any_server(), "--appendonly", "yes") as server,
        Frontier.from_url(server.url, NAME) as frontier,
        contextlib.closing(Served(server.url)) as served,
    ):
        frontier.push(["https://a.example/"])
        assert statuses() == {200}
        server.stop()
        wait_until(lambda: statuses() == {503}, 20, "that it is away")
        assert list(served.ask(f"{CRAWL}/hosts").json) == ["error"]
        server.start()
        wait_until(lambda: statuses() == {200}, 20, "the status again")
        assert served.get(CRAWL)["queued"] == 1


def test_streams(dashboard: Served, frontier: Frontier) -> None:
    """Programs may have what the pages ask for as events."""
    frontier.push(["https://a.example/"])
    for path, event in (("/api/stream", "crawls"), (f"{CRAWL}/stream", "status")):
        request = urllib.request.Request(
            f"http://127.0.0.1:{dashboard.port}{path}", headers=dashboard.token
        )
        with urllib.request.urlopen(request, timeout=20) as stream:
            assert stream.readline() == f"event: {event}\n".encode()
            assert json.loads(stream.readline().removeprefix(b"data: "))


def test_doctor(dashboard: Served, frontier: Frontier, redisq: Redisq) -> None:
    """Of the server, and of a crawl: what the command says, the project's settings apart, which is
    not there."""
    frontier.push(["https://a.example/"])
    assert dashboard.get("/api/doctor")["frontier"] is None
    told = dashboard.get(f"{CRAWL}/doctor")
    by_command = json.loads(redisq("doctor", "--json", NAME).out)
    assert (told["frontier"], told["level"], told["age"] >= 0) == (NAME, by_command["level"], True)
    parts = {line["about"] for line in told["lines"]}
    assert parts == {line["about"] for line in by_command["lines"]} - {"Settings"}
