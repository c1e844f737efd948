"""Whole crawls: real ``scrapy crawl`` processes against a real site and a real Redis."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import scrapy

from lab.proxy import Proxy
from lab.servers import RedisServer, any_server, wait_until
from lab.site import Answer, Site, linked_pages
from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import SettingError
from scrapy_redisq.settings.settings import RedisqSettings
from tests.faults.oracle import LEFT
from tests.harness.command import Redisq
from tests.harness.crawl import Busy, Crawl, Run, several, wait_until_joined

SELECT_REACTOR = "twisted.internet.selectreactor.SelectReactor"
NOBODY = "redis://user:s3cret@127.0.0.1:9/0"
FLEET_LIMITS = {"REDISQ_FLEET_LIMITS": "True"}
WITHOUT_SLOTS = "crawls.downloader.WithoutSlots"


def nothing_left(crawl: Run, name: str = "follow") -> dict[str, Any]:
    """Assert what every complete crawl leaves behind; -> its status."""
    with crawl.frontier(name) as frontier:
        status = frontier.status()
        keys = [*frontier.client.scan_iter("*")]
    assert status["state"] == "complete", status
    assert status["created"] == status["finished"]
    assert (status["queued"], status["leased"], status["delayed"]) == (0, 0, 0)
    assert status["workers"] == []
    assert {key.decode().split("}:")[1].split(":")[0] for key in keys} <= LEFT - {"trash"}
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


class TestRuns:
    def test_keep_seen(self, crawl: Run) -> None:
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
        assert nothing_left(crawl, "later")["created"] == 3

    def test_twice_in_one_process(self, redis_server: RedisServer) -> None:
        """A process that has run a crawl begins a new run with the next one, however old it is."""
        with Site(linked_pages(30)) as site:
            settings = {"REDISQ_URL": redis_server.url}
            assert several("follow", site.url, [settings, settings], in_turn=True) == 2 * [
                "finished"
            ]
            assert set(site.counts().values()) == {2}

    def test_garbage(self, redis_server: RedisServer, tmp_path: Path) -> None:
        """The collector passes over what stays to the end of a process that has one crawl alone. At
        its exit a file that nobody has closed is written."""
        settings = {"REDISQ_URL": redis_server.url, "LOOKED": False, "UNCLOSED": tmp_path / "file"}
        assert clean(Crawl("looked", tmp_path, settings=settings, fresh=True).wait().log)
        assert (tmp_path / "file").read_text() == "written at the exit"
        settings = {**settings, "LOOKED": "True", "UNCLOSED": str(tmp_path / "file")}
        assert several("looked", "", [settings]) == ["finished"]

    def test_a_run_with_a_name(self, crawl: Run) -> None:
        """REDISQ_RUN: it is crawled once, however often a supervisor starts it."""
        settings = {"REDISQ_RUN": "%(spider)s 1"}
        with Site(linked_pages(30)) as site:
            assert crawl("late", site, settings=settings).wait().reason == "finished"
            again = crawl("late", site, settings={**settings, "REDISQ_RESUME": False}).wait()
            assert again.reason == "finished"
            assert "run 'late 1' (REDISQ_RUN) of frontier 'late' is complete" in again.log
            assert clean(again.log)
            assert "start() was read" not in again.log
            assert set(site.counts().values()) == {1}
            assert crawl.status("late")["run_name"] == "late 1"
            crawl("late", site, {"REDISQ_RUN": "late 2", "CLOSESPIDER_PAGECOUNT": 5}).wait()
            assert did_not_start(crawl("late", site, {"REDISQ_RUN": "3"}).wait())
            assert crawl("late", site, {"REDISQ_RUN": "late 2"}).wait().reason == "finished"
            assert set(site.counts().values()) == {2}

    def test_keep_alive_and_latency(self, redis_server: RedisServer, crawl: Run) -> None:
        """An idle worker starts what is pushed within 0.3 s, if the machine has nothing else to
        do."""
        with Site(linked_pages(1)) as site, crawl.frontier("ordered") as frontier:
            worker = crawl("ordered", settings={"REDISQ_KEEP_ALIVE": True})
            worker.wait_for("Began run")
            wait_until(lambda: frontier.status()["workers"][0]["seen_ago"] > 1, 20, "it rests")
            for n in range(3):
                pushed, busy = time.monotonic(), Busy(redis_server, [worker])
                assert frontier.push([f"{site.url}/?{n}"]).accepted == 1
                wait_until(lambda n=n: len(site.hits) > n, 30, "the pushed page is fetched")
                assert site.hits[-1].at - pushed < 0.3 + busy.took()
            assert worker.terminate().wait().reason == "shutdown"


class TestOrder:
    @pytest.mark.parametrize(("order", "scheduling"), [("fifo", "slot"), ("lifo", "priority")])
    def test_exact(self, crawl: Run, order: str, scheduling: str) -> None:
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
            with crawl.frontier("ordered") as frontier:
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


class TestPages:
    def test_too_large_and_unserialisable(self, crawl: Run) -> None:
        """What is too large marks its page dead; what cannot be stored runs in this process."""
        with Site(linked_pages(20)) as site:
            worker = crawl("huge", site).wait()
            assert sum(hit.path.startswith("/6?local") for hit in site.hits) == 10
        assert worker.reason == "finished"
        assert sum(item.get("local", False) for item in worker.items()) == 10
        for name in ("unserializable", "enqueued/memory", "dequeued/memory"):
            assert worker.stats[f"scheduler/{name}"] == 10
        assert worker.stats["redisq/refused/too_large"] == 1
        assert worker.stats["redisq/refused/scheme"] == 1
        assert nothing_left(crawl, "huge")["created"] == 20
        letters = {letter.reason: letter.detail for letter in crawl.letters("huge")}
        assert letters.keys() == {"too_large", "scheme"}
        assert "REDISQ_MAX_ENTRY_BYTES" in letters["too_large"]
        assert "REDISQ_SCHEMES" in letters["scheme"]

    def test_callback_that_is_gone(self, crawl: Run) -> None:
        """A callback that a deploy removed: a dead letter, which works after the fix."""
        with Site(linked_pages(20)) as site, crawl.frontier("ordered") as frontier:
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
        assert nothing_left(crawl, "ordered")["dead"] == 0

    def test_slots_that_are_no_names(self, crawl: Run) -> None:
        """The downloader refuses them: each is a dead letter of its own, and no worker stops."""
        slots = [["a"], {"a": 1}, [[]]]
        with Site(linked_pages(3)) as site, crawl.frontier() as frontier:
            frontier.push(
                {"url": f"{site.url}/1?{number}", "meta": {"download_slot": slot}}
                for number, slot in enumerate(slots)
            )
            assert crawl("follow", site).wait().reason == "finished"
            assert [letter.reason for letter in frontier.dead()] == ["download"] * len(slots)
            assert frontier.status()["state"] == "complete"

    def test_the_same_object_again(self, crawl: Run) -> None:
        """A middleware or a callback hands in the very object that is being dealt with: each time
        it is another request."""
        with Site(lambda path: "x") as site:
            worker = crawl("odd_again", site).wait(30)
        assert worker.reason == "finished"
        items = Counter(item["url"].rpartition("/")[2] for item in worker.items())
        assert items == {"0": 1, "1": 1, "2": 2, "3": 2}
        status = crawl.status("odd_again")
        assert (status["state"], status["dead"]) == ("complete", 0)

    def test_tools(self, crawl: Run, tmp_path: Path) -> None:
        """Scrapy's engine status counts what waits; JOBDIR, and an object that requests of a page
        share, are warned of, each once."""
        with Site(lambda path: "x") as site:
            worker = crawl("tools", site, {"JOBDIR": tmp_path / "job"}).wait()
            assert worker.reason == "finished"
        assert worker.log.count("JOBDIR is of no use here") == 1
        assert worker.log.count("holds an object in meta['rows']") == 1
        statuses = [item["status"] for item in worker.items()]
        assert all(isinstance(number, int) for status in statuses for number in status)
        assert max(status[0] for status in statuses) > 5
        assert max(status[1] for status in statuses) > 0


def test_a_damaged_key(crawl: Run, redis_server: RedisServer, redisq: Redisq) -> None:
    """Its worker closes, and a person puts the key in order. What it held is missing at the end,
    which is no `finished` (F52)."""
    with Site(linked_pages(60, delay=0.1)) as site, redis_server.client() as client:
        few = {"REDISQ_LEASE_TTL": 2, "CONCURRENT_REQUESTS": 2, "REDISQ_MAX_LEASES": 2}
        worker = crawl("follow", site, few)
        queue: bytes = wait_until(lambda: next(client.scan_iter("*:queue:*"), b""), 20, "a queue")
        client.set(queue, "mine")
        assert (worker.wait().reason, worker.process.returncode) == ("frontier_corrupt", 1)
        assert queue.decode() in worker.log
        client.delete(queue)
        assert queue.decode() in redisq("reset", "follow", "--mend").out
        last = crawl("follow", site, few).wait()
        assert last.reason == "frontier_corrupt"
        assert "requests are missing" in last.log
        assert "The run is complete" in last.log


def test_other_arguments_are_another_crawl(crawl: Run, redisq: Redisq) -> None:
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
        allowed = {**open_run, "REDISQ_SAME_ARGUMENTS": False}
        other = crawl("follow", site, allowed, shop="it")
        wait_until_joined([other])
        for worker in (other, first):
            worker.terminate().wait()
    command = f"scrapy crawl follow -a shop=uk -a site={site.url} resumes the run"
    assert command in " ".join(redisq("status", "follow").out.split())


class TestTrouble:
    def test_outbox_reaches_its_bound(self, tmp_path: Path, crawl: Run) -> None:
        """While Redis is away and REDISQ_MAX_OUTBOX is reached no page is started, though some are
        leased, and no more start requests are read; when it is back, the crawl goes on at once.
        A worker that is stopped while Redis hangs gives up after REDISQ_CLOSE_TIMEOUT."""
        with RedisServer(any_server(), aof=True) as server:

            def page(path: str) -> Answer:
                return Answer("".join(f'<a href="{path}{n}">x</a>' for n in range(100)), delay=0.1)

            def idle() -> bool:
                return bool(site.hits) and time.monotonic() - site.hits[-1].at > 1

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
                server.signal(signal.SIGSTOP)  # it hangs, which takes longer than to be refused
                wait_until(idle, 20, "no page is started")
                assert worker.terminate().wait().reason == "shutdown"
            assert "REDISQ_CLOSE_TIMEOUT (1 s)" in worker.log
            # The bound, and what the pages in progress found.
            assert worker.stats["redisq/unsent"] <= 100 + 1 + 2 * 4 * 101

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"REDISQ_SHARDS": 2}, "REDISQ_SHARDS = 2: takes 1, or nothing, on one server"),
            ({"CONCURRENT_REQUESTS_PER_IP": 2}, "2: takes 0, or any number with REDISQ_SCHED"),
            ({"TWISTED_REACTOR": SELECT_REACTOR}, "scrapy-redisq needs asyncio"),
            ({"REDISQ_URL": NOBODY, "REDISQ_CONNECT_TIMEOUT": 0.5}, "REDISQ_CONNECT_TIMEOUT"),
            ({**FLEET_LIMITS, "DOWNLOADER": WITHOUT_SLOTS}, "own downloader, not WithoutSlots"),
        ],
    )
    def test_what_keeps_a_worker_from_starting(
        self, crawl: Run, settings: dict[str, Any], told: str
    ) -> None:
        """It is said in one line, without a password; and no other worker waits for this one."""
        worker = crawl("ordered", settings=settings).wait(20)
        assert did_not_start(worker)
        assert told in worker.log
        assert "s3cret" not in worker.log
        assert not crawl.status("ordered").get("workers")

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
        assert crawl.status()["state"] == "stopped"


class TestConfigurations:
    @pytest.mark.parametrize(
        "settings",
        [
            {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
            {"ADDONS": "{}", "SCHEDULER": "scrapy_redisq.Scheduler"},
            {"TWISTED_REACTOR_ENABLED": False},
        ],
        ids=["third-party", "by hand", "without a reactor"],
    )
    def test_crawl(self, crawl: Run, settings: dict[str, Any]) -> None:
        """Every configuration fetches each page once and says that it has finished. A dupefilter of
        one process is warned of, with the line to write; Redis has no other beside it."""
        with Site(linked_pages(20)) as site:
            worker = crawl("follow", site, settings=settings).wait()
            assert worker.reason == "finished", worker.log
            assert set(site.counts().values()) == {1}
            assert len(site.counts()) == 20
        assert clean(worker.log)
        nothing_left(crawl)
        is_of_one = "RFPDupeFilter" in str(settings)
        assert worker.log.count('Write DUPEFILTER_CLASS = "scrapy_redisq.Bloom') == is_of_one
        with crawl.frontier() as frontier:
            (run,) = frontier.client.hmget("redisq:{follow:0}:meta", "generation")
            has_seen = frontier.client.exists(f"redisq:{{follow:0}}:seen:{run.decode()}")
            assert has_seen == (not is_of_one)

    def test_several_shards_on_one_server(self, redis_server: RedisServer) -> None:
        """Producers refuse them, too."""
        with pytest.raises(SettingError, match="REDISQ_SHARDS"):
            settings = RedisqSettings.read({"REDISQ_SHARDS": 2})
            Frontier.from_url(redis_server.url, "follow", settings=settings)


# How often a crawl waits for Redis at its begin and at its end

NAMES = rb"\r\n(EVALSHA|EVAL|PING|ROLE|SUBSCRIBE|INFO|CONFIG)\r\n"


class Counted(Proxy):
    """Notes the commands of each packet, and "lease" where a reply brought one."""

    def __init__(self, to_port: int) -> None:
        super().__init__(to_port)
        self.events: list[str] = []

    async def pass_on(self, due: float, data: bytes, upwards: bool, connection: Any) -> bool:
        names = b" ".join(re.findall(NAMES, data)).decode()
        if upwards and names and names != "SUBSCRIBE":  # nothing waits for that
            self.events.append(names)
        elif not upwards and b"is_start_request" in data:
            self.events.append("lease")
        return await super().pass_on(due, data, upwards, connection)


def test_a_crawl_of_one_page(crawl: Run, redis_server: RedisServer) -> None:
    """On a server that knows the scripts five round trips bring the first lease: what the server
    is, its time, whether an old run is over, the join, and the exchange. After the last page there
    are three to the end, and three in which the worker leaves. One without an append-only file is
    asked for its snapshots, too."""

    def answer(path: str) -> Answer:
        time.sleep(0.1)  # meanwhile the worker has asked for more
        way.events.append("page")
        return Answer("x")

    begins, ends = [], []
    with Counted(redis_server.port) as way, Site(answer) as site:
        for name in ("before", "one", "two", "three"):  # a busy machine may need one more
            way.events.clear()
            settings = {"REDISQ_URL": redis_server.url_through(way.port), "REDISQ_FRONTIER": name}
            assert crawl("follow", site, settings).wait().reason == "finished"
            begins.append(way.events[: way.events.index("lease")])
            ends.append(way.events[way.events.index("page") + 1 :])
    assert ["PING INFO ROLE", "CONFIG", *["EVALSHA"] * 4] in begins[1:]
    assert any(end in ends[1:] for end in (["EVALSHA", "ROLE", *["EVALSHA"] * 4], ["EVALSHA"] * 5))
