"""Workers of one machine: which starts and stops next, real processes, and a real crawl."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from lab.launcher import Forked, fork
from lab.servers import RedisServer, wait_until
from lab.site import Answer, Site, linked_pages
from scrapy_redisq.control import Frontier
from scrapy_redisq.ops.autoscale import Bounds, CrawlCommand, Fleet, Load, Machine, Process
from scrapy_redisq.ops.autoscale.machine import exists, processors, resident
from tests.harness.command import Redisq, at
from tests.harness.crawl import PROJECT
from tests.harness.worker import EXACT, Worker

GIB = 2**30
ROOMY = Load(0.1, 8 * GIB, 10 * GIB)


class Pretended(Process):
    """A process that ends when the test says so."""

    def __init__(self, rig: Rig, number: int) -> None:
        self.rig, self.number, self.log = rig, number, None
        self.began, self.stopping, self.ended = rig.now, False, None
        self.killed = False
        self.signals: list[str] = []
        self.told = math.inf

    pid = 7
    rss = GIB

    @property
    def age(self) -> float:
        return self.rig.now - self.began

    @property
    def overdue(self) -> float:
        return max(0.0, self.rig.now - self.told)

    def code(self) -> int | None:
        return self.ended

    def stop(self) -> None:
        self.stopping = True
        self.told = min(self.told, self.rig.now)
        self.signals.append("TERM")
        if self.rig.ends_when_told:
            self.ended = 0

    def kill(self) -> None:
        self.killed = True
        self.signals.append("KILL")


class Rig:
    """A fleet whose clock is the test's."""

    def __init__(self, *, ends_when_told: bool = False, **options: Any) -> None:
        self.ends_when_told = ends_when_told
        self.now = 0.0
        self.said: list[str] = []
        self.fleet = Fleet(
            lambda number: Pretended(self, number),
            self.said.append,
            Bounds(**{"least": 1, "most": 8, **options}),
            clock=lambda: self.now,
        )

    @property
    def processes(self) -> list[Any]:
        return self.fleet.processes

    def go(self, seconds: float, wanted: int, load: Load = ROOMY) -> list[int]:
        """-> the numbers of the workers that are meant to run."""
        end = self.now + seconds
        while True:
            self.fleet.reap()
            self.fleet.judge(over=wanted == 0)
            self.fleet.scale(wanted, load)
            if self.now >= end:
                return [process.number for process in self.fleet.running]
            self.now += 1

    def end(self, number: int, code: int) -> None:
        (process,) = [process for process in self.processes if process.number == number]
        process.ended = code


def test_it_grows_one_by_one_and_stops_the_newest() -> None:
    """The least at once, the others one after the other; one too many is stopped after a while."""
    rig = Rig(least=2, ends_when_told=True)
    assert rig.go(0, 5) == [1, 2]
    assert rig.go(3, 5) == [1, 2, 3]
    assert rig.go(20, 5) == [1, 2, 3, 4, 5]
    assert rig.go(29, 1) == [1, 2, 3, 4, 5]
    assert rig.go(2, 5) == [1, 2, 3, 4, 5]  # it was only for a moment
    newest = rig.processes[-1]
    assert rig.go(31, 4) == [1, 2, 3, 4]
    assert newest.signals == ["TERM"]
    assert rig.go(300, 0) == [1, 2]
    assert rig.go(300, 100)[-1] == 11
    assert len(rig.fleet.running) == rig.fleet.bounds.most


@pytest.mark.parametrize(
    ("load", "workers"),
    [
        (Load(0.95, 8 * GIB, 10 * GIB), 1),
        (Load(0.5, GIB, 10 * GIB), 1),
        (Load(None, None, None), 4),
        (ROOMY, 4),
    ],
)
def test_what_the_machine_has_room_for(load: Load, workers: int) -> None:
    """Beyond the least no worker is started on a busy machine, or one without memory for it."""
    rig = Rig()
    assert len(rig.go(30, 4, load)) == workers
    assert bool(rig.fleet.held_back) == (workers < 4)


def test_one_that_is_told_to_stop_takes_its_time() -> None:
    """Its pages are long: the next one is not stopped before it has ended, for too little memory or
    for too little work, and no more processes than that are there beside the most."""
    short = Load(0.1, 0, 10 * GIB)
    rig = Rig(ends_when_told=True)
    rig.go(30, 4)
    assert rig.go(30, 4, short) == [1]
    rig = Rig(most=4)
    rig.go(30, 4)
    assert rig.go(30, 4, short) == [1, 2, 3]
    for _ in range(5):
        rig.go(40, 4)
        rig.go(140, 1)
        assert len(rig.processes) <= 5


def test_what_crashes_is_replaced() -> None:
    """After a pause that doubles, and begins anew with one that has worked for a while."""
    rig = Rig(least=2, first_pause=2)
    rig.go(20, 2)
    rig.end(1, 137)
    assert rig.go(1, 2) == [2]
    assert rig.go(1, 2) == [2, 3]
    rig.end(3, 1)
    assert rig.go(3, 2) == [2]
    assert rig.go(1, 2) == [2, 4]
    assert rig.fleet.failures == 2
    rig.go(11, 2)
    assert rig.fleet.failures == 0
    rig.end(4, 0)
    assert rig.go(0, 2) == [2, 5]
    rig.end(5, 0)
    assert rig.go(1, 2) == [2]
    assert not rig.fleet.has_failed()


def test_it_gives_up() -> None:
    """When all end at once and nothing gets done; not while pages are finished meanwhile."""
    rig = Rig()
    for number in range(1, 6):
        assert not rig.fleet.has_failed()
        while not rig.go(1, 1):
            pass
        rig.end(number, 3)
    rig.fleet.reap()
    rig.fleet.judge(over=False)
    assert rig.fleet.has_failed()
    assert not rig.fleet.has_failed(finished=5)
    assert "exit code 3 after" in rig.said[-1]
    assert "the next starts in 16 s" in rig.said[-1]


def test_one_that_cannot_be_started() -> None:
    """For want of memory, or as its command is being replaced: those that run go on, and it is
    tried again after a pause. A command that there never was is told at once."""
    rig = Rig()
    rig.go(3, 1)
    start = rig.fleet._start

    def cannot(number: int) -> Process:
        raise BlockingIOError("Resource temporarily unavailable")

    rig.fleet._start = cannot
    assert rig.go(2, 2) == [1]
    assert "could not be started" in rig.said[-1]
    rig.fleet._start = start
    assert len(rig.go(5, 2)) == 2
    rig = Rig()
    rig.fleet._start = cannot
    with pytest.raises(BlockingIOError):
        rig.go(0, 1)


def test_one_that_hangs() -> None:
    """It is waited for; with a grace period it is killed after that, and one that stays when the
    run is complete is told to stop first."""
    rig = Rig(least=1, grace=60)
    rig.go(10, 2)
    assert rig.go(50, 1) == [1]
    assert rig.processes[-1].signals == ["TERM"]
    rig.go(60, 1)
    assert rig.processes[-1].signals == ["TERM", "KILL"]
    rig.end(2, 137)
    rig.fleet.see_off()
    rig.go(61, 0)
    rig.fleet.see_off()
    assert rig.processes[0].signals == ["TERM"]
    rig = Rig()
    rig.go(10, 2)
    rig.go(10_000, 1)
    rig.fleet.see_off()
    assert [process.signals for process in rig.processes] == [[], ["TERM"]]


@pytest.mark.parametrize(
    ("words", "spider", "settings"),
    [
        ("scrapy crawl books", "books", {}),
        ("scrapy crawl -s A=1 -a x=y books", "books", {"A": "1"}),
        ("scrapy crawl -sB=2 --set=C=3=4 --set D= books", "books", {"B": "2", "C": "3=4", "D": ""}),
        ("scrapy crawl -L INFO -o -:jsonl books", "books", {}),
        ("uv run scrapy runspider spider.py -o x.jsonl", "spider.py", {}),
        ("scrapy crawl", "", {}),
        ("./crawl.sh books -s A=1", "", {}),
    ],
)
def test_what_a_command_says(words: str, spider: str, settings: dict[str, str]) -> None:
    """The spider and the settings of a crawl, in whatever order."""
    command = CrawlCommand(words.split())
    assert (command.spider, command.settings) == (spider, settings)
    assert command.arguments == ({"x": "y"} if "x=y" in words else {})


def test_the_machine() -> None:
    """CPU and memory of this one, of which there is some."""
    machine = Machine()
    machine.look()
    load = wait_until(lambda: (found := machine.look()).cpu is not None and found, 10, "CPU")
    assert 0 <= load.cpu <= 1.5
    assert 0 < load.free < load.total
    assert processors() > 0
    assert resident(os.getpid()) > 2**20
    assert resident(2**30) == 0
    assert exists(os.getpid())
    assert not any(map(exists, (2**22 + 1, 2**40, 0)))


# Processes


@pytest.fixture
def autoscale(redis_server: RedisServer, tmp_path: Path) -> Iterator[Any]:
    """Starts ``scrapy redisq autoscale ARGUMENTS``; -> its process and log."""
    started: list[Forked] = []

    def start(*arguments: str) -> tuple[Forked, Path]:
        log = tmp_path / f"autoscale-{len(started)}.log"
        log.touch()
        options = ["--logs", str(tmp_path), "--max-cpu", "0"]
        words = ["redisq", "autoscale", *at(redis_server), *options, *arguments]
        started.append(fork("scrapy", words, PROJECT, log, dict(os.environ)))
        return started[-1], log

    yield start
    for process in started:
        process.kill()
        process.wait(10)


FORKED = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(PROJECT.parent.parent)!r})
from lab.launcher import fork
process = fork("scrapy", sys.argv[2:], Path.cwd(), Path(sys.argv[1]), os.environ)
signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
code = process.wait()
sys.exit(128 - code if code < 0 else code)
"""
"""A worker as a wrapper starts it, in a tenth of the time."""


def test_a_crawl(autoscale: Any, redis_server: RedisServer, tmp_path: Path) -> None:
    """It begins with one worker, another is added when there is work for it; one that is killed is
    replaced, in the same run, also where workers would not resume one; it ends with the run, and
    says so."""
    pages, go_on = linked_pages(60, links=60), threading.Event()

    def page(path: str) -> Answer | None:
        answer = pages(path)
        if answer is not None and path[1:].isdecimal() and int(path[1:]) >= 20:
            answer.until = go_on
        return answer

    with Site(page) as site, Frontier.from_url(redis_server.url, "follow") as frontier:

        def workers() -> list[int]:
            return [one["pid"] for one in frontier.status()["workers"] if one["alive"]]

        command = [sys.executable, "-c", FORKED, str(tmp_path / "crawls.log"), "crawl", "follow"]
        command += ["-a", f"site={site.url}", *at(redis_server)]
        command += ["-s", "REDISQ_LEASE_TTL=2", "-s", "REDISQ_RESUME=False"]
        process, log = autoscale("--max", "2", "--", *command)
        wait_until(lambda: len(workers()) == 2, 60, f"two workers, see {log}")
        run = frontier.status()["run"]
        os.kill(workers()[0], signal.SIGKILL)
        wait_until(lambda: "worker 3 started" in log.read_text(), 60, f"a third one, see {log}")
        go_on.set()
        assert process.wait(60) == 0, log.read_text()
        status = frontier.status()
    assert (status["state"], status["run"]) == ("complete", run)
    assert f"the run {status['run_name']} is complete" in log.read_text()


def test_a_run_that_nobody_has_completed(
    autoscale: Any, one_client: redis.Redis, tmp_path: Path
) -> None:
    """All that is known is finished, but start() was not read to its end when the last worker left:
    another one is started. What keeps the crawl from being looked at stops no worker."""
    go_on = tmp_path / "go on"
    script = f"[ -e '{tmp_path}/second' ] || {{ touch '{tmp_path}/second'; exit 0; }}; "
    script += f"while [ ! -e '{go_on}' ]; do sleep 0.05; done"
    worker = Worker(one_client, "books", EXACT)
    worker.exchange(seeded=False)
    worker.leave()
    _, log = autoscale("--max", "1", "--", "sh", "-c", script, "scrapy", "crawl", "books")
    wait_until(lambda: "worker 2 started" in log.read_text(), 30, f"another one, see {log}")
    one_client.delete("redisq:{books:0}:workers")
    one_client.set("redisq:{books:0}:workers", "something else")
    go_on.touch()
    wait_until(lambda: "worker 2 (pid" in log.read_text(), 30, f"its end, see {log}")


def test_signals(autoscale: Any) -> None:
    """SIGTERM goes on to the workers, and so does the second one. The third kills them; their exit
    code is the verdict. Linux sends SIGTERM if autoscale is killed."""

    def started(then: str) -> tuple[Forked, Path, Path]:
        script = f"n=0; trap 'n=$((n+1)); echo TERM $n; {then}' TERM; echo up; "
        script += "while :; do sleep 1 & wait; done"
        process, log = autoscale("books", "--", "sh", "-c", script)
        of_worker = log.with_name("worker-1.log")
        wait_until(lambda: of_worker.exists() and "up" in of_worker.read_text(), 30, f"see {log}")
        return process, log, of_worker

    process, log, of_worker = started(":")
    for n in (1, 2):
        process.send_signal(signal.SIGTERM)
        wait_until(lambda n=n: f"TERM {n}" in of_worker.read_text(), 30, "the signal")
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 128 + signal.SIGKILL, log.read_text()
    assert "give its workers one REDISQ_RUN" in log.read_text()
    if sys.platform.startswith("linux"):
        of_worker.unlink()
        process, _, of_worker = started("exit")
        process.kill()
        wait_until(lambda: "TERM 1" in of_worker.read_text(), 30, "no orphan")


def test_a_crash_that_was_replaced(autoscale: Any, tmp_path: Path) -> None:
    """It does not count when all workers end well after SIGTERM."""
    script = f"[ -e '{tmp_path}/crashed' ] || {{ touch '{tmp_path}/crashed'; exit 3; }}; "
    script += "trap 'exit 0' TERM; echo up; while :; do sleep 1 & wait; done"
    process, log = autoscale("books", "--", "sh", "-c", script)
    of_second = tmp_path / "worker-2.log"
    wait_until(lambda: of_second.exists() and "up" in of_second.read_text(), 30, f"see {log}")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0, log.read_text()
    assert "ended with exit code 3" in log.read_text()


def test_a_crawl_that_fails_at_once(redisq: Redisq, tmp_path: Path) -> None:
    """A command that there is not, one without a crawl, and wrong bounds are told in a line."""
    ran = redisq("autoscale", "books", "--", "no-such-scrapy", "crawl", "books")
    assert (ran.code, "no-such-scrapy" in ran.err) == (1, True)
    assert redisq("autoscale", "books").code == 2
    assert redisq("autoscale", "--max", "0", "books", "--", "scrapy", "crawl", "books").code == 2
    ran = redisq("autoscale", "--", "./crawl.sh")
    assert (ran.code, "NAME" in ran.err) == (1, True)
