"""docs/tutorial/ works as it stands there: each file is written, each command run, in order.

What differs is the site, which is the test's own, and the port of Redis. ``pip install`` is left
out. Commands of ``scrapy`` are forked from a process that has imported it.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.launcher import Forked, fork
from lab.servers import any_server, free_port, wait_until
from lab.site import Answer, Site, linked_pages
from scrapy_redisq.control import Frontier
from tests.docs.test_readme import ENVIRONMENT, blocks, check_fields
from tests.harness.command import run_well
from tests.harness.crawl import gaps

SETTINGS = "shop/settings.py"


class Reader:
    """Somebody who follows a page of the tutorial, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.started: list[Forked | subprocess.Popen[bytes]] = []

    def open(self, page: str) -> None:
        self.commands = iter("".join(blocks(f"docs/tutorial/{page}.md", "sh")).splitlines())
        self.files = blocks(f"docs/tutorial/{page}.md", "python")

    def next(self, expected: str) -> str:
        command = next(self.commands)
        assert re.fullmatch(expected, command), command
        return command

    def run(self, command: str) -> str:
        """What it says; it must end well."""
        if "scrapy " not in command:
            return run_well(["sh", "-c", command], self.folder, ENVIRONMENT)
        output = self.log.with_name("said")
        output.unlink(missing_ok=True)
        code = self._fork(command, output).wait(100)
        said = output.read_text()
        assert code == 0, said
        return said

    def crawl(self, command: str, site: str, *settings: str) -> Forked:
        """Run it in the background, on the test's own site."""
        more = "".join(f" -s {setting}" for setting in settings)
        return self._fork(f"{command} -a site={site}/{more}", self.log)

    def _fork(self, command: str, output: Path) -> Forked:
        folder, _, command = command.rpartition(" && ")
        program, *arguments = shlex.split(command)
        place = self.folder / folder.removeprefix("cd ")
        process = fork(program, arguments, place, output, ENVIRONMENT)
        self.started.append(process)
        return process

    def write_files(self) -> None:
        """Those of the page, in the project; what is for settings.py goes to its end."""
        for block in self.files:
            path, _, text = block.removeprefix("# ").partition("\n")
            with (self.folder / path).open("a" if path == SETTINGS else "w") as file:
                file.write(text)

    def begin(self) -> None:
        """The first page up to its first crawl."""
        self.open("first-crawl")
        self.next(r"python3 -m venv .*")
        self.next(r"pip install .*")
        self.run(self.next(r"scrapy startproject shop"))
        self.folder /= self.next(r"cd shop").removeprefix("cd ")
        self.write_files()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    for process in reader.started:
        process.kill()
        process.wait(10)


@pytest.mark.long
def test_first_crawl(reader: Reader) -> None:
    """Two workers, one killed, one stopped, resumed by two: each page is fetched, none lost.

    `status --json` has exactly the fields of docs/reference/status.schema.json.
    """
    reader.begin()
    server = f"embedded://{reader.folder}/.scrapy/redisq"
    looked = threading.Event()
    home, pages_of_site = linked_pages(100, links=100), linked_pages(100)

    def page(path: str) -> Answer | None:
        """The first page links to most, of which most come when all has been looked at."""
        answer = home(path) if path == "/" else pages_of_site(path)
        if answer and path[1:].isdigit() and int(path[1:]) >= 20:
            answer.until = looked
        return answer

    with Site(page) as site, Frontier.from_url(server, "books") as frontier:
        command = reader.next(r"scrapy crawl books")
        first, second = (reader.crawl(command, site.url) for _ in range(2))
        wait_until(
            lambda: sum(worker["leased"] > 0 for worker in frontier.status()["workers"]) == 2,
            100,
            f"both have requests, see {reader.log}",
        )
        command = reader.next(r"scrapy redisq status")
        shown = reader.run(command)
        assert "running" in shown
        assert f":{first.pid} " in shown
        assert f":{second.pid} " in shown
        check_fields(json.loads(reader.run(f"{command} --json")))

        reader.run(reader.next(r"kill -9 PID").replace("PID", str(first.pid)))
        second.send_signal(signal.SIGINT)
        looked.set()
        assert second.wait(100) == 0
        wait_until(lambda: frontier.status()["state"] == "stopped", 20, "nobody is left")
        assert frontier.status()["queued"] > 0

        command = reader.next(r"scrapy crawl books")
        for worker in [reader.crawl(command, site.url) for _ in range(2)]:
            assert worker.wait(100) == 0
        pages = {path: n for path, n in site.counts().items() if path != "/robots.txt"}
        assert frontier.status()["state"] == "complete"
    assert len(pages) >= 100
    assert sum(pages.values()) - len(pages) <= 8, "only what the killed worker held"
    assert reader.log.read_text().count("Spider closed (finished)") == 2
    assert list(reader.commands) == []


@pytest.mark.long
def test_database(reader: Reader) -> None:
    """Each page is in the database once, also after another crawl."""
    reader.begin()
    reader.open("database")
    reader.next(r"pip install .*")
    reader.write_files()
    crawl, count = reader.next(r"scrapy crawl books"), reader.next(r"python -c .*")
    with Site(linked_pages(30)) as site:
        for _ in range(2):
            assert reader.crawl(crawl, site.url, "DOWNLOAD_DELAY=0").wait(100) == 0
            pages = str(len(site.counts().keys() - {"/robots.txt"}))
            assert reader.run(count).split() == [pages, pages]
    assert "no dead letters" in reader.run(reader.next(r"scrapy redisq dead list books"))
    assert list(reader.commands) == []


@pytest.mark.long
def test_fleet(reader: Reader) -> None:
    """Two hosts keep one delay, heed what people say, and do not begin a named run again."""
    reader.begin()
    reader.open("fleet")
    port = str(free_port())
    program, *arguments = shlex.split(reader.next(r"redis-server .*").replace("6379", port))
    assert program == "redis-server"
    command = [any_server(), *arguments]
    output = subprocess.DEVNULL
    reader.started.append(subprocess.Popen(command, cwd=reader.folder.parent, stdout=output))
    reader.files = [file.replace("6379", port) for file in reader.files]
    reader.write_files()
    reader.folder = reader.folder.parent
    for _ in range(2):
        reader.run(reader.next(r"cp -r shop host\d"))
    assert "Server" in reader.run(reader.next(r".* scrapy redisq doctor"))
    with Site(linked_pages(25)) as site:
        crawls = [reader.next(rf"cd host{n} && scrapy crawl books") for n in (1, 2)]
        workers = [reader.crawl(crawl, site.url) for crawl in crawls]
        wait_until(lambda: len(site.hits) > 6, 100, f"pages are fetched, see {reader.log}")
        assert all(
            f":{worker.pid} " in shown
            for shown in [reader.run(reader.next(r".* status books"))]
            for worker in workers
        )
        assert "0.5 s" in reader.run(reader.next(r".* slots books"))
        politely = site.starts()["127.0.0.1"]
        for expected in ("pause", "resume", "slots limit"):
            command = reader.next(rf".* {expected} books.*")
            reader.run(command.replace("books.toscrape.com", "127.0.0.1"))
        assert [worker.wait(100) for worker in workers] == [0, 0]
        assert min(gaps(politely)) > 0.4
        crawled = len(site.hits)
        assert reader.crawl(reader.next(r"cd host2 && scrapy crawl books"), site.url).wait(100) == 0
        assert len(site.hits) == crawled >= 25
    assert list(reader.commands) == []
