"""What Prometheus and autoscalers are told."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lab.proxy import Proxy
from lab.servers import RedisServer
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.names import key_prefix
from scrapy_redisq.ops import serving
from scrapy_redisq.ops.metrics.exporter import make_app
from scrapy_redisq.ops.metrics.exposition import Exposition
from scrapy_redisq.ops.metrics.families import METRICS
from scrapy_redisq.server.connection import open_server
from tests.control.member import Member, some_urls
from tests.dashboard.served import Answering

prometheus = pytest.importorskip("prometheus_client.parser", reason="NO prometheus-client")

Get = Callable[..., tuple[int, str]]
Values = dict[str, float]


def values(text: str) -> Values:
    """The samples by name and labels, as Prometheus reads them."""
    found = {}
    for family in prometheus.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@contextmanager
def exporter(url: str) -> Iterator[Get]:
    """One that runs; -> asks it for a path."""
    with (
        open_server(url, socket_timeout=1, connect_timeout=1) as server,
        contextlib.closing(Answering(lambda: make_app(server))) as running,
    ):

        def get(path: str, method: str = "GET") -> tuple[int, str]:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
            with contextlib.closing(connection):
                connection.request(method, path)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

        yield get


def test_connections_that_ask_nothing(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep no probe from its answer: the oldest are closed, also after a request."""
    monkeypatch.setattr(serving, "MOST_SILENT", 10)
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        open_server(redis_server.url) as server,
        contextlib.closing(Answering(lambda: make_app(server))) as running,
        contextlib.ExitStack() as opened,
    ):

        def connect() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", running.port), 10))

        asked = connect()
        asked.sendall(ask)
        assert asked.recv(1_000).startswith(b"HTTP/1.1 200")
        silent = [connect() for _ in range(30)]
        silent[-1].sendall(ask)
        assert silent[-1].recv(1_000).startswith(b"HTTP/1.1 200")
        assert (asked.recv(1), silent[0].recv(1)) == (b"", b"")
        silent[-2].settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent[-2].recv(1)


def crawl(frontier: Frontier) -> None:
    """Six requests: two queued, two with a worker, one done, one dead; and two duplicates."""
    frontier.push([*some_urls(6), *some_urls(2)])
    worker = Member(frontier)
    done, dead = worker.claim(2)
    worker.finish(done)
    worker.finish(dead, "dead", reason="download")
    worker.exchange(2)


def test_figures(redis_server: RedisServer) -> None:
    """They are those of `status`, their names are those that are declared, and Prometheus can read
    them; no label has a host."""
    with Frontier.from_url(redis_server.url, 'bo"oks') as frontier:
        crawl(frontier)
        took = {
            "exchanges_1000": 3,
            "exchanges_5000": 2,
            "exchanges_more": 1,
            "exchanges_us": 12_000_000,
            "status_200": 5,
            "status_5xx": 2,
            'status_x"y': 7,
        }
        frontier.client.hset(key_prefix('bo"oks', 0) + "counts", mapping=took)
        text = Exposition().text([frontier]).decode()
    found = values(text)
    assert "a.example" not in text
    of_crawl = {
        name.replace('crawl=bo"oks', "").replace("{,", "{"): value for name, value in found.items()
    }
    assert found["redisq_up"] == 1
    states = {"queued": 2, "leased": 2, "delayed": 0, "dead": 1}
    for state, number in states.items():
        assert of_crawl[f"redisq_requests{{state={state}}}"] == number
    events = {"created": 6, "finished": 2, "duplicate": 2, "dead": 1, "retried": 0}
    for event, number in events.items():
        assert of_crawl[f"redisq_requests_total{{event={event}}}"] == number
    name = "redisq_exchange_duration_seconds"
    within = {"0.001": 3, "0.0025": 3, "0.005": 5, "10.0": 5, "+Inf": 6}
    assert {bound: of_crawl[f"{name}_bucket{{le={bound}}}"] for bound in within} == within
    assert (of_crawl[f"{name}_count{{}}"], of_crawl[f"{name}_sum{{}}"]) == (6, 12)
    assert of_crawl["redisq_workers{state=working}"] == 1
    assert of_crawl["redisq_workers_wanted{}"] == 1
    assert of_crawl["redisq_slots{state=due}"] == 2
    assert of_crawl["redisq_why{reason=working}"] == 1
    statuses = {name: number for name, number in of_crawl.items() if "responses" in name}
    assert statuses == {
        "redisq_responses_total{status=200}": 5,
        "redisq_responses_total{status=5xx}": 2,
    }
    assert of_crawl["redisq_run_state{state=running}"] == 1
    assert of_crawl["redisq_seen_urls{}"] == 6
    assert of_crawl["redisq_memory_bytes{part=queues}"] > 0
    assert found["redisq_redis_memory_bytes"] > 0
    if tool := shutil.which("promtool"):
        subprocess.run([tool, "check", "metrics"], input=text, text=True, check=True, timeout=60)
    named = set(re.findall(r"^# TYPE (\w+)", text, re.M))
    assert named <= set(METRICS)
    assert set(METRICS) - named <= {"redisq_next_start_seconds", "redisq_redis_full_in_seconds"}


def test_an_exporter(frontier: Frontier, redis_server: RedisServer) -> None:
    """It finds the frontiers, tells how many workers are wanted, refuses what it does not know; and
    a new one goes on with the counters, of which none goes back when dead letters do."""
    crawl(frontier)
    with exporter(redis_server.url) as get:
        assert get("/healthz") == (200, "ok\n")
        status, text = get("/metrics")
        assert (status, get("/metrics", "HEAD")) == (200, (200, ""))
        before = values(text)
        assert before["redisq_crawl_up{crawl=books}"] == 1
        status, told = get("/scale/books?min=2&max=5")
        assert (status, json.loads(told)["workers"]) == (200, 2)
        assert json.loads(get("/scale/absent")[1])["workers"] == 0
        assert json.loads(get("/scale/absent?run=monday")[1])["workers"] == 1
        for wrong in ("min=x", "min=3&max=2", "most=3", "max=-1", "rest_after=nan"):
            assert get(f"/scale/books?{wrong}")[0] == 400
        assert get("/scale/%7B%7D")[0] == 400
        assert get("/nothing")[0] == 404
    with exporter(redis_server.url) as get:
        after = values(get("/metrics")[1])
        assert frontier.requeue() == 1
        after = values(get("/metrics")[1])
    assert after["redisq_requests{crawl=books,state=dead}"] == 0
    counters = [name for name in before if re.search("_total|_bucket|_sum|_count", name)]
    assert len(counters) > 10
    assert {name: before[name] for name in counters} == {name: after[name] for name in counters}


def test_redis_is_away(frontier: Frontier, redis_server: RedisServer) -> None:
    """It says so, and goes on when Redis is back; nobody is told to scale meanwhile. A crawl that
    cannot be read does not hide the others."""
    frontier.push(some_urls(1))
    frontier.client.set("redisq:{broken:0}:meta", "no hash")
    with Proxy(redis_server.port) as proxy, exporter(redis_server.url_through(proxy.port)) as get:
        found = values(get("/metrics")[1])
        assert found["redisq_up"] == found["redisq_crawl_up{crawl=books}"] == 1
        assert found["redisq_crawl_up{crawl=broken}"] == 0
        assert get("/scale/broken")[0] == 503
        proxy.cut()
        status, text = get("/metrics")
        assert (status, values(text)["redisq_up"]) == (200, 0)
        assert get("/scale/books")[0] == 503
        proxy.mend()
        assert values(get("/metrics")[1])["redisq_crawl_up{crawl=books}"] == 1
