"""Whole crawls: real ``scrapy crawl`` processes against a real site and a real Redis."""

from __future__ import annotations

import dataclasses
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy import Request

from lab.proxy import Proxy
from lab.servers import RedisServer, any_server, wait_until
from lab.site import Answer, Site, folder_pages, linked_pages
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import SettingError
from scrapy_redisq.serialization.serializer import Serializer
from scrapy_redisq.settings.settings import RedisqSettings
from tests.faults.oracle import LEFT
from tests.harness.busy import Busy
from tests.harness.command import Redisq
from tests.harness.crawl import Crawl, Run, several, wait_until_joined

DOCUMENTATION = Path("/usr/share/doc/python3.11/html")


def frontier_of(server: RedisServer, name: str = "follow") -> Frontier:
    return Frontier.from_url(server.url, name)


def nothing_left(server: RedisServer, name: str = "follow") -> dict[str, Any]:
    """Assert what every complete crawl leaves behind; -> its status."""
    with frontier_of(server, name) as frontier:
        status = frontier.status()
    assert status["state"] == "complete", status
    assert status["created"] == status["finished"]
    assert (status["queued"], status["leased"], status["delayed"]) == (0, 0, 0)
    assert status["workers"] == []
    with server.client() as client:
        kinds = {key.decode().split("}:")[1].split(":")[0] for key in client.scan_iter("*")}
    assert kinds <= LEFT - {"trash"}
    return status


def clean(log: str) -> bool:
    return "Traceback" not in log and "ERROR" not in log


def did_not_start(worker: Crawl) -> bool:
    """It ended without a crawl, with one line that says why, last and without any traceback; on new
    Scrapy with an exit code."""
    code_is_good = worker.process.returncode != 0 or scrapy.version_info < (2, 19)
    before, _, why = worker.log.partition("ERROR: The crawl cannot start: ")
    explained = clean(before) and "[scrapy" not in why and "Traceback" not in why and bool(why)
    return code_is_good and explained and worker.reason != "finished"


@contextmanager
def lossy(port: int) -> Iterator[tuple[str, list[bytes]]]:
    """A way to the server on ``port`` where the connection breaks after the first EVALSHA, whose
    reply is lost. -> its URL, and what was lost."""
    lost: list[bytes] = []

    def carry(source: socket.socket, target: socket.socket, upwards: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if upwards and b"EVALSHA" in data and not lost:
                    lost.append(b"EVALSHA")
                    source.shutdown(socket.SHUT_RDWR)  # first, or the reply might be faster
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                sockets.extend((client, server))
                for pair in ((client, server, True), (server, client, False)):
                    threads.append(threading.Thread(target=carry, args=pair))
                    threads[-1].start()

    sockets: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))
    threads = [threading.Thread(target=serve)]
    threads[0].start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0", lost
    finally:
        for each in (listener, *sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)
        for each in (listener, *sockets):
            each.close()


class TestFleet:
    @pytest.mark.long
    def test_python_documentation(self, redis_server: RedisServer, crawl: Run) -> None:
        """Three workers fetch each page of real documentation once and end together."""
        if not (DOCUMENTATION / "index.html").is_file():
            pytest.skip("NO REAL HTML: apt-get install python3.11-doc")
        pages = folder_pages(DOCUMENTATION)

        def beginning(path: str) -> Answer | None:
            """Most of the links; to parse all of the largest pages takes half a minute."""
            answer = pages(path)
            return answer and dataclasses.replace(answer, body=answer.body[:8_000])

        with Site(beginning) as site:
            settings = {"DEPTH_LIMIT": 0, "ROBOTSTXT_OBEY": False}
            workers = crawl.fleet(3, "documentation", site, settings)
            for worker in workers:
                worker.wait(120)
            counts = site.counts()
        assert len(counts) > 450
        assert set(counts.values()) == {1}
        assert [worker.reason for worker in workers] == ["finished"] * 3
        ends = [worker.finished_at for worker in workers]
        assert max(ends) - min(ends) < 3
        shares = [worker.stats["downloader/response_count"] for worker in workers]
        assert min(shares) >= len(counts) / 10, shares
        assert all(clean(worker.log) for worker in workers)
        nothing_left(redis_server, "documentation")

    def test_start_requests_of_many_workers(self, redis_server: RedisServer, crawl: Run) -> None:
        """Each start request is fetched once, however many workers there are. Without the
        dupefilter the same one may be wanted twice, as with Scrapy's scheduler."""
        with Site(linked_pages(100)) as site:
            workers = crawl.fleet(3, "many", site)
            for worker in workers:
                assert worker.wait().reason == "finished"
            counts = site.counts()
        assert len(counts) == 100
        assert {page for page, n in counts.items() if n == 2} == {"/0", "/1", "/2", "/3"}
        assert sum(counts.values()) == 104
        nothing_left(redis_server, "many")

    def test_closing_early_leaves_the_rest(self, redis_server: RedisServer, crawl: Run) -> None:
        """A worker with CLOSESPIDER_PAGECOUNT leaves; a later one resumes where it was."""
        with Site(linked_pages(150)) as site:
            first = crawl("follow", site, settings={"CLOSESPIDER_PAGECOUNT": 20}).wait()
            assert first.reason == "closespider_pagecount"
            with frontier_of(redis_server) as frontier:
                status = frontier.status()
            assert status["state"] == "stopped"
            assert status["leased"] == 0
            assert status["queued"] > 0
            assert crawl("follow", site).wait().reason == "finished"
            assert set(site.counts().values()) == {1}
            assert len(site.counts()) == 150
        nothing_left(redis_server)

    def test_blocked_worker_is_fenced(self, redis_server: RedisServer, crawl: Run) -> None:
        """A callback that blocks for three TTLs: others take over, late finishes are stale."""
        with Site(linked_pages(60, delay=0.02)) as site:
            settings = {"REDISQ_LEASE_TTL": 1, "REDISQ_SAME_ARGUMENTS": False}
            blocked = crawl("blocks", site, settings=settings, seconds=3.2)
            wait_until(lambda: "/7" in site.counts(), 20, "the page that blocks")
            other = crawl("blocks", site, settings=settings, seconds=0)
            assert other.wait().reason == "finished"
            assert blocked.wait().reason == "finished"
            counts = site.counts()
        assert len(counts) == 60
        assert sum(counts.values()) - 60 <= 32
        assert "leases are void" in blocked.log
        assert nothing_left(redis_server, "blocks")["stale"] > 0


class TestRuns:
    def test_finished_crawl_begins_anew(self, redis_server: RedisServer, crawl: Run) -> None:
        """A finished crawl started again fetches everything again."""
        with Site(linked_pages(30)) as site:
            for n in (1, 2):
                assert crawl("follow", site).wait().reason == "finished"
                assert set(site.counts().values()) == {n}
                assert nothing_left(redis_server)["created"] == 30
        with redis_server.client() as client:
            generations = {
                key.decode().split(":seen:")[1].split(":")[0]
                for key in client.scan_iter("*:seen:*")
            }
            run = client.hget("redisq:{follow:0}:meta", "run")
        generations = {name for name in generations if not name.endswith(".starts")}
        assert generations == {run.decode()}, "the first run's dupefilter was not deleted"

    def test_keep_seen(self, redis_server: RedisServer, crawl: Run) -> None:
        """With REDISQ_KEEP_SEEN a new run fetches start pages again, also one that pages link to
        before ``start()`` comes to it, and then what is new."""
        with Site(linked_pages(30)) as site:
            settings = {"REDISQ_KEEP_SEEN": True}
            assert crawl("later", site, settings=settings).wait().reason == "finished"
            assert set(site.counts().values()) == {1}
            site.page = lambda path: '<a href="/1">seen</a><a href="/new">new</a>'
            again = crawl("later", site, settings=settings, last="/1")
            assert again.wait().reason == "finished"
            counts = site.counts()
        assert counts["/0"] == counts["/1"] == 2
        assert counts["/new"] == 1
        assert sum(counts.values()) == 30 + 3
        assert nothing_left(redis_server, "later")["created"] == 3

    def test_without_resume(self, redis_server: RedisServer, crawl: Run) -> None:
        """REDISQ_RESUME=False forgets an unfinished run."""
        with Site(linked_pages(60)) as site:
            crawl("follow", site, settings={"CLOSESPIDER_PAGECOUNT": 20}).wait()
            fetched = len(site.hits)
            assert fetched < 60
            again = crawl("follow", site, settings={"REDISQ_RESUME": False}).wait()
            assert again.reason == "finished"
            assert len(site.hits) == fetched + 60
        assert nothing_left(redis_server)["created"] == 60

    def test_pushed_too_late(self, redis_server: RedisServer, crawl: Run) -> None:
        """What is pushed when the last worker has decided to end waits, and its log says so."""
        with Site(linked_pages(4)) as site:
            worker = crawl("pushed", site).wait()
            assert worker.reason == "finished"
            assert "1 requests came in when this worker had decided to end" in worker.log
            assert "The run is complete" not in worker.log
            assert len(site.hits) == 4
        with frontier_of(redis_server, "pushed") as frontier:
            status = frontier.status()
        assert (status["state"], status["queued"]) == ("stopped", 1)

    def test_ready_too_late(self, redis_server: RedisServer, crawl: Run, tmp_path: Path) -> None:
        """A worker that is ready only when the others have finished has nothing to do."""
        until = tmp_path / "finished"
        with Site(linked_pages(30)) as site:
            late = crawl("late", site, _until=until)
            late.wait_for("waits to be ready")
            assert crawl("late", site).wait().reason == "finished"
            until.touch()
            assert late.wait().reason == "finished"
            assert set(site.counts().values()) == {1}
            assert "after this one had been started. To crawl again, start it again" in late.log
            assert clean(late.log)
            assert "start() was read" not in late.log
            assert crawl("late", site).wait().reason == "finished"
            assert set(site.counts().values()) == {2}

    def test_ready_too_late_for_another_crawl(
        self, redis_server: RedisServer, crawl: Run, tmp_path: Path
    ) -> None:
        """With other arguments it is not of the run that the others have finished: it crawls."""
        until = tmp_path / "finished"
        with Site(linked_pages(30)) as site:
            late = crawl("late", site, shop="de", _until=until)
            late.wait_for("waits to be ready")
            assert crawl("late", site, shop="uk").wait().reason == "finished"
            until.touch()
            assert late.wait().reason == "finished"
            assert set(site.counts().values()) == {2}
        assert nothing_left(redis_server, "late")["created"] == 30

    def test_twice_in_one_process(self, redis_server: RedisServer) -> None:
        """A process that has run a crawl begins a new run with the next one, however old it is."""
        with Site(linked_pages(30)) as site:
            settings = {"REDISQ_URL": redis_server.url}
            assert several("follow", site.url, [settings, settings], in_turn=True) == 2 * [
                "finished"
            ]
            assert set(site.counts().values()) == {2}

    def test_a_run_with_a_name(self, redis_server: RedisServer, crawl: Run) -> None:
        """REDISQ_RUN: it is crawled once, however often a supervisor starts it."""
        settings = {"REDISQ_RUN": "%(spider)s 1"}
        with Site(linked_pages(30)) as site:
            assert crawl("late", site, settings=settings).wait().reason == "finished"
            for change in ({}, {"REDISQ_ORDER": "lifo"}, {"REDISQ_RESUME": False}):
                again = crawl("late", site, settings={**settings, **change}).wait()
                assert again.reason == "finished"
                assert "run 'late 1' (REDISQ_RUN) of frontier 'late' is complete" in again.log
                assert clean(again.log)
                assert "start() was read" not in again.log
            assert set(site.counts().values()) == {1}
            with frontier_of(redis_server, "late") as frontier:
                assert frontier.status()["run_name"] == "late 1"
            crawl(
                "late", site, settings={"REDISQ_RUN": "late 2", "CLOSESPIDER_PAGECOUNT": 5}
            ).wait()
            assert did_not_start(crawl("late", site, settings={"REDISQ_RUN": "3"}).wait())
            assert (
                crawl("late", site, settings={"REDISQ_RUN": "late 2"}).wait().reason == "finished"
            )
            assert set(site.counts().values()) == {2}

    def test_keep_alive_and_latency(self, redis_server: RedisServer, crawl: Run) -> None:
        """An idle worker asks seldom, and starts what is pushed within 0.3 s, if the machine has
        nothing else to do."""
        with Site(linked_pages(1)) as site, frontier_of(redis_server, "ordered") as frontier:
            worker = crawl("ordered", settings={"REDISQ_KEEP_ALIVE": True})
            worker.wait_for("Began run")
            with redis_server.client() as client:
                wait_until(
                    lambda: frontier.status()["workers"][0]["seen_ago"] > 0.5, 20, "it backs off"
                )

                def exchanges() -> int:
                    info = client.info("commandstats")
                    return int(info["cmdstat_evalsha"]["calls"])

                before, began = exchanges(), time.monotonic()
                wait_until(lambda: time.monotonic() - began > 3, 10, "three idle seconds")
                assert exchanges() - before <= 6
                for n in range(3):
                    pushed, busy = time.monotonic(), Busy(redis_server, [worker])
                    assert frontier.push([f"{site.url}/?{n}"]).accepted == 1
                    wait_until(lambda n=n: len(site.hits) > n, 5, "the pushed page is fetched")
                    assert site.hits[-1].at - pushed < 0.3 + busy.took()
            worker.terminate()
            assert worker.wait().reason == "shutdown"

    def test_empty_crawl_ends(self, redis_server: RedisServer, crawl: Run) -> None:
        """A spider without start requests finishes at once."""
        assert crawl("ordered").wait().reason == "finished"
        nothing_left(redis_server, "ordered")


class TestOrder:
    @pytest.mark.parametrize("order", ["fifo", "lifo"])
    @pytest.mark.parametrize("scheduling", ["slot", "priority"])
    def test_exact(
        self, redis_server: RedisServer, crawl: Run, order: str, scheduling: str
    ) -> None:
        """One request at a time: highest priority first, within it oldest or newest first."""
        priorities = [0, 5, -3, 5, 0, 100, -3, 0]
        settings = {
            "CONCURRENT_REQUESTS": 1,
            "REDISQ_ORDER": order,
            "REDISQ_SCHEDULING": scheduling,
        }
        with Site(linked_pages(100)) as site:
            # An unfinished run of nothing sets the order that the push then follows.
            crawl("ordered", settings={**settings, "REDISQ_KEEP_ALIVE": True})
            with frontier_of(redis_server, "ordered") as frontier:
                wait_until(lambda: frontier.status()["state"] == "running", 20, "it has begun")
                result = frontier.push(
                    {"url": f"{site.url}/{n}", "priority": priority}
                    for n, priority in enumerate(priorities)
                )
                assert result.accepted == len(priorities)
                wait_until(lambda: len(site.hits) == len(priorities), 20, "all are fetched")
            fetched = [int(hit.path.strip("/")) for hit in site.hits]
        arrival = 1 if order == "fifo" else -1
        expected = sorted(range(len(priorities)), key=lambda n: (-priorities[n], arrival * n))
        assert fetched == expected

    def test_fast_host_is_not_starved(self, redis_server: RedisServer, crawl: Run) -> None:
        """Beside a host that does not answer yet, a fast host goes on at its own pace."""

        answered = threading.Event()

        def page(path: str) -> Answer:
            return Answer("<html></html>", until=answered)

        with Site(page) as slow, Site(linked_pages(1000)) as fast:
            sites = f"{slow.url} {fast.url.replace('127.0.0.1', 'localhost')}"
            worker = crawl("hosts", sites=sites, pages=60)
            wait_until(lambda: len(fast.hits) == 60, 30, "the fast host is done")
            assert len(slow.hits) <= 16
            answered.set()
            worker.wait()
            assert worker.reason == "finished"
            assert len(slow.hits) == 60


class TestPages:
    def test_redirects(self, redis_server: RedisServer, crawl: Run) -> None:
        """A redirect to a new page is followed, one to a seen page is not, a loop ends."""

        def page(path: str) -> Answer | str | None:
            links = "".join(f'<a href="{to}">x</a>' for to in ("/new", "/old", "/loop", "/1"))
            match path:
                case "/0":
                    return f"<html>{links}</html>"
                case "/new":
                    return Answer("", 302, {"Location": "/target"})
                case "/old":
                    return Answer("", 302, {"Location": "/1"})
                case "/loop":
                    return Answer("", 302, {"Location": "/loop2"})
                case "/loop2":
                    return Answer("", 302, {"Location": "/loop"})
                case "/1" | "/target":
                    return "<html></html>"
            return None

        with Site(page) as site:
            worker = crawl("follow", site).wait()
            counts = site.counts()
        assert worker.reason == "finished"
        assert counts["/target"] == 1
        assert counts["/1"] == 1
        assert {item["url"].rpartition("/")[2] for item in worker.items()} == {"0", "1", "target"}
        nothing_left(redis_server)

    def test_redirect_and_retry_of_a_start_request(
        self, redis_server: RedisServer, crawl: Run
    ) -> None:
        """A start request that is retried and redirected is not taken for its own duplicate."""

        def page(path: str) -> Answer | str | None:
            if path == "/0":
                return (
                    Answer("", 503) if len(site.hits) <= 1 else Answer("", 302, {"Location": "/1"})
                )
            return "<html></html>"

        with Site(page) as site:
            worker = crawl("follow", site).wait()
            assert [hit.path for hit in site.hits] == ["/0", "/0", "/1"]
        assert len(worker.items()) == 1
        nothing_left(redis_server)

    def test_thousands_of_links(self, redis_server: RedisServer, crawl: Run) -> None:
        """A page with 5,000 links: all of them are in the frontier before the page is done."""

        def page(path: str) -> str:
            if path == "/0":
                return "".join(f'<a href="/{n}">x</a>' for n in range(5_000))
            return "<html></html>"

        with Site(page) as site:
            worker = crawl("follow", site, settings={"CLOSESPIDER_PAGECOUNT": 5}).wait(90)
        assert worker.reason == "closespider_pagecount"
        with frontier_of(redis_server) as frontier:
            status = frontier.status()
        assert status["created"] == 5_000
        assert status["queued"] == 5_000 - status["finished"]

    def test_errors_become_dead_letters(self, redis_server: RedisServer, crawl: Run) -> None:
        """A callback or a pipeline that raises makes its page a dead letter, with the reason."""
        with Site(linked_pages(20)) as site:
            worker = crawl("faulty", site).wait()
            assert worker.reason == "finished"
            assert nothing_left(redis_server, "faulty")["dead"] == 4
            with frontier_of(redis_server, "faulty") as frontier:
                letters = list(frontier.dead())
                assert sorted(letter.reason for letter in letters) == [
                    "item_error",
                    "item_error",
                    "spider_error",
                    "spider_error",
                ]
                assert any(
                    "ValueError: a page that ends in 3" in letter.detail for letter in letters
                )
                assert frontier.requeue() == 4
                assert frontier.status()["queued"] == 4
            assert crawl("faulty", site).wait().reason == "finished"
            assert nothing_left(redis_server, "faulty")["dead"] == 4

    def test_failed_downloads(self, redis_server: RedisServer, crawl: Run) -> None:
        """A download that failed is a dead letter, unless the request's errback deals with it."""
        with Site(linked_pages(1)) as site:
            worker = crawl("errback", site).wait()
        assert "dealt with http://127.0.0.1:9/with\n" in worker.log
        nothing_left(redis_server, "errback")
        with frontier_of(redis_server, "errback") as frontier:
            (letter,) = frontier.dead()
        assert letter.reason == "download"
        assert "ConnectionRefused" in letter.detail or "Connect" in letter.detail

    def test_too_large_and_unserialisable(self, redis_server: RedisServer, crawl: Run) -> None:
        """What is too large marks its page dead; what cannot be stored runs in this process."""
        with Site(linked_pages(20)) as site:
            worker = crawl("huge", site).wait()
            assert sum(hit.path.startswith("/6?local") for hit in site.hits) == 10
        assert worker.reason == "finished"
        assert sum(item.get("local", False) for item in worker.items()) == 10
        assert worker.stats["scheduler/unserializable"] == 10
        assert worker.stats["redisq/refused/too_large"] == 1
        assert worker.stats["redisq/refused/scheme"] == 1
        assert nothing_left(redis_server, "huge")["created"] == 20
        with frontier_of(redis_server, "huge") as frontier:
            letters = {letter.reason: letter.detail for letter in frontier.dead()}
        assert letters.keys() == {"too_large", "scheme"}
        assert "REDISQ_MAX_ENTRY_BYTES" in letters["too_large"]
        assert "REDISQ_SCHEMES" in letters["scheme"]

    def test_corrupt_and_foreign_entries(self, redis_server: RedisServer, crawl: Run) -> None:
        """Entries that are no requests become dead letters; the worker goes on."""
        with Site(linked_pages(20)) as site:
            with frontier_of(redis_server, "ordered") as frontier:
                frontier.push([f"{site.url}/{n}" for n in range(20)])
                with redis_server.client() as client:
                    queue = next(client.scan_iter("*:queue:*"))
                    foreign = [
                        b"",
                        b"\x00",
                        b"\x00garbage",
                        b"\x00\x80\x04\x95pickle",
                        b"\x00\x02{}",
                    ]
                    # And one that could be read, but must not be.
                    passwords = Serializer(None, max_bytes=999).dumps(Request("file:///etc/passwd"))
                    client.rpush(queue, *foreign, b"\0" + passwords)
            worker = crawl("ordered").wait()
            assert len(site.counts()) == 20
        assert worker.reason == "finished"
        left = nothing_left(redis_server, "ordered")
        assert (left["created"], left["dead"], left["foreign"]) == (26, 6, 5)
        with frontier_of(redis_server, "ordered") as frontier:
            assert sum("REDISQ_SCHEMES" in letter.detail for letter in frontier.dead()) == 1

    def test_callback_that_is_gone(self, redis_server: RedisServer, crawl: Run) -> None:
        """A callback that a deploy removed: a dead letter, which works after the fix."""
        with Site(linked_pages(20)) as site, frontier_of(redis_server, "ordered") as frontier:
            frontier.push([{"url": f"{site.url}/1", "callback": "parse_new"}])
            assert crawl("ordered").wait().reason == "finished"
            (letter,) = frontier.dead()
            assert letter.reason == "undecodable"
            assert "parse_new" in letter.detail
            assert site.hits == []
            assert frontier.requeue([letter.id]) == 1
            # The fix is a spider that has the callback.
            fixed = crawl("ordered", settings={"SPIDER_MODULES": "crawls.fixed"}).wait()
            assert fixed.reason == "finished"
            assert len(site.hits) == 1
        assert nothing_left(redis_server, "ordered")["dead"] == 0


def test_a_damaged_key(crawl: Run, redis_server: RedisServer, redisq: Redisq) -> None:
    """All workers close, and nobody joins before a person has put the key in order. What it held is
    missing at the end, which is no `finished` (F52)."""
    with Site(linked_pages(60, delay=0.1)) as site, redis_server.client() as client:
        few = {"REDISQ_LEASE_TTL": 2, "CONCURRENT_REQUESTS": 2, "REDISQ_MAX_LEASES": 2}
        workers = crawl.fleet(2, "follow", site, few)
        queue: bytes = wait_until(lambda: next(client.scan_iter("*:queue:*"), b""), 20, "a queue")
        client.set(queue, "mine")
        for worker in workers:
            assert worker.wait().reason == "frontier_corrupt"
            assert queue.decode() in worker.log
        refused = crawl("follow", site).wait()
        assert f"The crawl cannot start: key {queue.decode()}" in refused.log
        client.delete(queue)
        assert queue.decode() in redisq("reset", "follow", "--mend").out
        last = crawl("follow", site).wait()
        assert last.reason == "frontier_corrupt"
        assert "requests are missing" in last.log
        assert "The run is complete" in last.log
        assert crawl("follow", site).wait().reason == "finished"


def test_other_arguments_are_another_crawl(
    crawl: Run, redis_server: RedisServer, redisq: Redisq
) -> None:
    """A worker with other arguments is refused by a line that has both; or has a frontier of its
    own. ``status`` says how to resume. What a launcher adds does not count (F69)."""
    open_run = {"REDISQ_KEEP_ALIVE": True}
    with Site(linked_pages(5)) as site:
        first = crawl("follow", site, open_run, shop="uk", _job=1)
        wait_until_joined([first])
        refused = crawl("follow", site, shop="de").wait()
        (line,) = [line for line in refused.log.splitlines() if "The crawl cannot start" in line]
        assert f"-a is 'shop=uk site={site.url}' there and 'shop=de site={site.url}' here" in line
        assert "Traceback" not in refused.log
        own = crawl("follow", site, {"REDISQ_FRONTIER": "%(arguments)s"}, shop="de")
        assert own.wait().reason == "finished"
        allowed = {**open_run, "REDISQ_SAME_ARGUMENTS": False, "REDISQ_LEASE_TTL": 1}
        other = crawl("follow", site, allowed, shop="it")
        wait_until_joined([other])
        other.kill()
        first.terminate()
        assert first.wait().reason == "shutdown"
    command = f"scrapy crawl follow -a shop=uk -a site={site.url} resumes the run"
    wait_until(
        lambda: command in " ".join(redisq("status", "follow").out.split()), 20, "nobody is there"
    )


class TestTrouble:
    def test_outbox_reaches_its_bound(self, tmp_path: Path, crawl: Run) -> None:
        """While Redis is away and REDISQ_MAX_OUTBOX is reached no page is started, though some are
        leased, and no more start requests are read; when it is back, the crawl goes on at once."""
        server = RedisServer(any_server(), aof=True)

        def page(path: str) -> Answer:
            return Answer("".join(f'<a href="{path}{n}">x</a>' for n in range(100)), delay=0.1)

        def idle() -> bool:
            return bool(site.hits) and time.monotonic() - site.hits[-1].at > 1

        try:
            with Site(page) as site:
                settings = {
                    "REDISQ_URL": server.url,
                    "REDISQ_MAX_OUTBOX": 100,
                    "REDISQ_MAX_LEASES": 200,
                    "REDISQ_CLOSE_TIMEOUT": 1,
                    "CONCURRENT_REQUESTS": 4,
                    "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
                }
                worker = crawl("flood", site, settings=settings)
                wait_until(lambda: len(site.hits) >= 20, 30, "some pages")
                server.kill()
                before = len(site.hits)
                wait_until(idle, 20, "no page is started")
                assert len(site.hits) - before <= 2 * 4
                server.start()
                back = time.monotonic()
                wait_until(lambda: site.hits[-1].at > back, 10, "pages are started again")
                assert site.hits[-1].at - back < 4.5, "it waited for Scrapy's heartbeat"
                server.kill()
                wait_until(idle, 20, "no page is started")
                worker.terminate()
                assert worker.wait().reason == "shutdown"
            # The bound, and what the pages in progress found.
            assert worker.stats["redisq/unsent"] <= 100 + 1 + 2 * 4 * 101
        finally:
            server.close()

    def test_close_is_bounded(self, tmp_path: Path, crawl: Run) -> None:
        """With Redis gone for good a worker that is stopped gives up after REDISQ_CLOSE_TIMEOUT."""
        server = RedisServer(any_server())
        try:
            with Site(linked_pages(500, delay=0.1)) as site:
                settings = {"REDISQ_URL": server.url, "REDISQ_CLOSE_TIMEOUT": 1}
                worker = crawl("follow", site, settings=settings)
                wait_until(lambda: len(site.hits) >= 30, 30, "some pages")
                server.signal(signal.SIGSTOP)  # it hangs, which takes longer than to be refused
                worker.terminate()
                worker.wait_for("Closing spider", 10)
                closing = time.monotonic()
                worker.wait_for("Spider closed", 10)
                assert time.monotonic() - closing < 1 + 4
            assert worker.wait().reason == "shutdown"
            assert "REDISQ_CLOSE_TIMEOUT (1 s)" in worker.log
            assert worker.stats["redisq/unsent"] > 0
        finally:
            server.close()

    def test_a_worker_that_ends_beside_a_full_redis_loses_nothing(self, crawl: Run) -> None:
        """Redis takes what its pages brought, and that it leaves; the next one goes on at once."""
        server = RedisServer(any_server())
        try:
            with Site(linked_pages(100)) as site, server.client() as client:
                settings = {"REDISQ_URL": server.url, "REDISQ_CLOSE_TIMEOUT": 5}
                worker = crawl("follow", site, settings=settings)
                wait_until(lambda: len(site.hits) >= 5, 30, "some pages")
                client.config_set("maxmemory", 1)
                worker.wait_for("Redis is at its maxmemory")
                worker.terminate()
                assert worker.wait().reason == "shutdown"
                assert "REDISQ_CLOSE_TIMEOUT" not in worker.log
                assert "redisq/unsent" not in worker.stats
                client.config_set("maxmemory", 0)
                assert crawl("follow", site, settings=settings).wait().reason == "finished"
                assert site.counts() == Counter(f"/{n}" for n in range(100))
        finally:
            server.close()

    def test_scripts_are_flushed(self, redis_server: RedisServer, crawl: Run) -> None:
        """SCRIPT FLUSH under a crawl is not visible (F19)."""
        with Site(linked_pages(60, delay=0.02)) as site, redis_server.client() as client:
            worker = crawl("follow", site)
            while worker.process.poll() is None:
                client.script_flush()
                wait_until(lambda: True, 1, "")
            assert worker.reason == "finished"
            assert clean(worker.log)
            assert set(site.counts().values()) == {1}
            assert len(site.counts()) == 60

    def test_unreachable_at_start(self, tmp_path: Path, crawl: Run) -> None:
        """No server: a clear error that names the settings, and no password."""
        settings = {
            "REDISQ_URL": "redis://user:s3cret@127.0.0.1:9/0",
            "REDISQ_CONNECT_TIMEOUT": 0.5,
        }
        worker = crawl("ordered", settings=settings).wait(20)
        assert did_not_start(worker)
        assert "REDISQ_CONNECT_TIMEOUT" in worker.log
        assert "s3cret" not in worker.log

    def test_reply_to_the_join_is_lost(self, redis_server: RedisServer, crawl: Run) -> None:
        """The connection breaks while a worker joins: it joins again, under the same id, so that
        nobody waits for a worker that is not there."""
        with Site(linked_pages(20)) as site:
            # The first joins the run that this has begun, so that Redis knows the script.
            with frontier_of(redis_server, "ordered") as frontier:
                frontier.push([f"{site.url}/{n}" for n in range(20)])
            with lossy(redis_server.port) as (url, lost):
                worker = crawl("ordered", settings={"REDISQ_URL": url}).wait(30)
            assert lost == [b"EVALSHA"]
            assert set(site.counts().values()) == {1}
            assert len(site.counts()) == 20
        assert worker.reason == "finished"
        assert clean(worker.log)
        nothing_left(redis_server, "ordered")

    def test_cannot_start_when_it_has_joined(self, redis_server: RedisServer, crawl: Run) -> None:
        """It leaves the run: else all others would wait for it, at their end, for its TTL."""
        settings = {"REDISQ_FLEET_LIMITS": "True", "DOWNLOADER": "crawls.downloader.WithoutSlots"}
        worker = crawl("ordered", settings=settings).wait(20)
        assert did_not_start(worker)
        assert "need Scrapy's own downloader, not WithoutSlots" in worker.log
        with frontier_of(redis_server, "ordered") as frontier:
            assert frontier.status()["workers"] == []

    @pytest.mark.parametrize(
        ("name", "value", "told"),
        [
            ("REDISQ_ORDER", "random", "'random': takes 'fifo' or 'lifo'"),
            ("CONCURRENT_REQUESTS_PER_IP", 2, "2: takes 0, or any number with REDISQ_SCHEDULING"),
        ],
    )
    def test_wrong_setting(self, crawl: Run, name: str, value: object, told: str) -> None:
        """A setting with a value that it does not take is named, with what it takes."""
        worker = crawl("ordered", settings={name: value}).wait(20)
        assert did_not_start(worker)
        assert f"{name} = {told}" in worker.log

    def test_wrong_reactor(self, crawl: Run) -> None:
        """Without asyncio there is a clear error."""
        settings = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
        worker = crawl("ordered", settings=settings).wait(20)
        assert "scrapy-redisq needs asyncio" in worker.log
        assert did_not_start(worker)

    def test_without_reactor(self, redis_server: RedisServer, crawl: Run) -> None:
        """TWISTED_REACTOR_ENABLED=False works (Scrapy 2.15 and newer)."""
        with Site(linked_pages(30)) as site:
            worker = crawl("follow", site, settings={"TWISTED_REACTOR_ENABLED": False}).wait()
            assert worker.reason == "finished", worker.log
            assert set(site.counts().values()) == {1}
        nothing_left(redis_server)

    def test_stopped_while_it_waits_for_redis(self, redis_server: RedisServer, crawl: Run) -> None:
        """Without a reactor, too, it ends soon after Redis is there, and leaves the rest."""
        with Site(linked_pages(300)) as site, Proxy(redis_server.port) as proxy:
            proxy.cut()
            url = redis_server.url_through(proxy.port)
            settings = {"TWISTED_REACTOR_ENABLED": False, "REDISQ_URL": url}
            worker = crawl("follow", site, settings=settings)
            worker.wait_for("Spider opened")
            worker.terminate()
            worker.wait_for("Received SIGTERM")
            proxy.mend()
            assert worker.wait(30).reason == "shutdown"
            assert len(site.counts()) < 300
        with Frontier.from_url(redis_server.url, "follow") as frontier:
            assert frontier.status()["state"] == "stopped"


class TestConfigurations:
    @pytest.mark.parametrize(
        "settings",
        [
            {"DUPEFILTER_CLASS": "scrapy_redisq.ExactDupeFilter"},
            {"REDISQ_SCHEDULING": "priority", "REDISQ_ORDER": "lifo"},
            {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
            {"ADDONS": "{}", "SCHEDULER": "scrapy_redisq.Scheduler"},
        ],
        ids=["exact", "priority", "third-party", "by hand"],
    )
    def test_crawl(self, redis_server: RedisServer, crawl: Run, settings: dict[str, Any]) -> None:
        """Every configuration fetches each page once and says that it has finished. A dupefilter of
        one process is warned of, with the line to write."""
        with Site(linked_pages(60)) as site:
            worker = crawl("follow", site, settings=settings).wait()
            assert worker.reason == "finished", worker.log
            assert set(site.counts().values()) == {1}
            assert len(site.counts()) == 60
        assert clean(worker.log)
        nothing_left(redis_server)
        is_of_one = "RFPDupeFilter" in str(settings)
        assert worker.log.count('Write DUPEFILTER_CLASS = "scrapy_redisq.Bloom') == is_of_one

    def test_several_shards_on_one_server(self, crawl: Run, redis_server: RedisServer) -> None:
        """Are refused by name, and nothing is begun."""
        with Site(linked_pages(1)) as site:
            worker = crawl("follow", site, {"REDISQ_SHARDS": 2}).wait()
            assert "REDISQ_SHARDS = 2: takes 1, or nothing, on one server" in worker.log
            assert site.hits == []
        with pytest.raises(SettingError, match="REDISQ_SHARDS"):
            settings = RedisqSettings.read({"REDISQ_SHARDS": 2})
            Frontier.from_url(redis_server.url, "follow", settings=settings)

    def test_embedded(self, tmp_path: Path, crawl: Run) -> None:
        """Without a server of their own, processes share an embedded one, which ends with them."""
        url = f"embedded://{tmp_path}/server"
        with Site(linked_pages(60)) as site:
            workers = crawl.fleet(3, "follow", site, {"REDISQ_URL": url})
            for worker in workers:
                assert worker.wait().reason == "finished", worker.log
            assert set(site.counts().values()) == {1}
            assert len(site.counts()) == 60
        with Frontier.from_url(url, "follow") as frontier:
            assert frontier.status()["state"] == "complete"
