"""``scrapy redisq …``: mostly `main` in this process, and a few real processes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from lab.servers import RedisServer, any_server, free_port, wait_until
from scrapy_redisq.commands import display, watching
from scrapy_redisq.commands.autoscale import _project_of
from scrapy_redisq.commands.main import main
from scrapy_redisq.commands.project import Project
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.ops.autoscale import CrawlCommand
from tests.control.conftest import Opener
from tests.control.member import Member, some_urls
from tests.harness.command import Ran, Redisq, terminal


@pytest.mark.parametrize(
    ("key", "write"),
    [
        ("counts", ["HSET", b"\xff", "1"]),
        ("meta", ["HSET", b"\xff", b"\xff"]),
        ("aside", ["SET", "x"]),
        ("limits", ["SET", "x"]),
        ("ruled", ["SET", "x"]),
    ],
)
def test_a_foreign_key_is_named(
    redisq: Redisq, frontier: Frontier, key: str, write: list[Any]
) -> None:
    """One line says where somebody else has written, whatever the command is."""
    frontier.push(some_urls(3))
    command, *values = write
    frontier.client.execute_command(command, f"redisq:{{books:0}}:{key}", *values)
    said = [redisq(*args) for args in (("status", "books"), ("slots", "books"))]
    codes = {ran.code for ran in said}
    assert codes == ({0, 1} if key in {"limits", "ruled"} else {1})
    for ran in said:
        if ran.code:
            (line,) = ran.err.splitlines()
            assert f"redisq:{{books:0}}:{'meta' if command == 'HSET' else key} " in line
            assert "script:" not in line


class TestUsage:
    @pytest.mark.parametrize(
        ("args", "said"),
        [
            ([], "COMMAND"),
            (["status", "--js"], "--js"),
            (["push", "books", "-", "https://a.example/"], "stands alone"),
            (["push", "books", "--every", "0", "https://a.example/"], "a second at least"),
            (["push", "books", "--at", "noon", "https://a.example/"], "YYYY-MM-DDTHH:MM"),
            (["dead", "requeue", "books"], "--all"),
            (["dead", "requeue", "books", "0-1", "--all"], "either"),
            (["dead", "requeue", "books", "17"], "0-17"),
            (["dead", "list", "books", "--limit", "-1"], "whole number"),
            (["slots", "pause"], "SLOT"),
            (["slots", "limit", "books", "a.example"], "--none"),
            (["slots", "limit", "a.example", "--none", "--delay", "1"], "either"),
            (["slots", "limit", "a.example", "--rate", "9"], "--rate 9 for a.example: takes a num"),
            (["server", "restart"], "invalid choice"),
        ],
    )
    def test_wrong_usage_is_2(self, redisq: Redisq, args: list[str], said: str) -> None:
        """Wrong usage: code 2, what is wrong on stderr, no abbreviations of options."""
        ran = redisq(*args)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err

    @pytest.mark.parametrize(
        "args",
        [
            *([], ["status"], ["push"], ["dead"], ["dead", "list"], ["reset"], ["server"]),
            *(["slots"], ["slots", "pause"], ["slots", "limit"], ["slots", "drop"]),
            *(["autoscale"], ["exporter"], ["url"], ["workers"], ["doctor"], ["dashboard"]),
            ["migrate"],
        ],
    )
    def test_each_has_a_help(
        self, redisq: Redisq, args: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Help tells the usage of just that command, how to set REDISQ_URL, the exit codes; it is
        no wider than the terminal."""
        monkeypatch.setenv("COLUMNS", "80")
        ran = redisq(*args, "--help")
        assert ran.code == 0
        assert ran.out.startswith(f"usage: {' '.join(['scrapy redisq', *args])}")
        assert "-s REDISQ_URL=" in ran.out and "Exit codes" in ran.out
        assert max(map(len, ran.out.splitlines())) <= 80


class TestStatus:
    def test_no_frontier(self, redisq: Redisq) -> None:
        """An empty server: said so, without JSON lines, and it is no error; none at all is one."""
        assert redisq("status").out.startswith("No frontier on redis://127.0.0.1")
        url = f"redis://user:s3cret@127.0.0.1:{free_port()}/0"
        ran = redisq("status", REDISQ_URL=url, REDISQ_CONNECT_TIMEOUT=0)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert "redis://user:***@" in ran.err and "REDISQ_CONNECT_TIMEOUT" in ran.err
        assert redisq("status", "--json") == (0, "", "")
        ran = redisq("status", "books")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("books: there is no such frontier on redis://127.0.0.1")
        absent = json.loads(redisq("status", "books", "--json").out)
        assert (absent["state"], absent["created"]) == ("absent", 0)

    def test_all_frontiers(self, redisq: Redisq, frontier: Frontier, open_frontier: Opener) -> None:
        """Without a name, one line each; a shard is no frontier, nor is any other key."""
        frontier.push(some_urls(3))
        shop = open_frontier("shop: [b]a[/b]", config=FrontierConfig(shards=3))
        shop.push(some_urls(2_000))
        frontier.client.set("redisq:{x:0}:metal", 1)
        ran = redisq("status")
        lines = ran.out.splitlines()
        assert (ran.code, len(lines)) == (0, 4)
        assert lines[2].split()[:3] == ["books", "stopped", "3"]
        assert "shop: [b]a[/b]" in lines[3] and "2,000" in lines[3]
        told = [json.loads(line) for line in redisq("status", "--json").out.splitlines()]
        assert [(x["frontier"], x["queued"]) for x in told] == [("books", 3), (shop.name, 2_000)]

    def test_a_full_disk(self, redisq: Redisq) -> None:
        """Whoever looks sees; who would change something is told at once, and a push waits."""
        with RedisServer(any_server()) as server:
            with server.client() as client, Frontier.from_url(server.url, "books") as frontier:
                frontier.push(["https://a.example/"])
                (server.folder / "dump.rdb").mkdir()  # no snapshot can be written
                client.config_set("save", "3600 1")
                client.bgsave()
                wait_until(
                    lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err",
                    10,
                    "it failed",
                )
            given = {"REDISQ_URL": server.url, "REDISQ_CONNECT_TIMEOUT": 0.1}
            for command in ("status books", "status --json", "slots", "dead list books"):
                assert redisq(*command.split(), **given).code == 0
            for command in ("slots pause a.example", "push books https://b.example/"):
                ran = redisq(*command.split(), **given)
                assert (ran.code, "MISCONF" in ran.err) == (1, True)

    def test_one_that_cannot_be_read(self, redisq: Redisq, frontier: Frontier) -> None:
        """A frontier of a newer release is named on stderr and hides none of the others."""
        frontier.push(some_urls(1))
        frontier.client.hset("redisq:{new:0}:meta", "format", "99")
        ran = redisq("status")
        assert "books" in ran.out and "'new' has format 99" in ran.err
        ran = redisq("status", "new")
        assert (ran.code, ran.out) == (1, "")
        assert "format 99" in ran.err

    def test_names_cannot_steer_the_terminal(self) -> None:
        """Control characters, bidirectional marks and lone surrogates are shown as escapes."""
        assert display.clean("a\x1b[31m\u202eb\x9b\udc80ü\n\u2028\t") == (
            "a\\x1b[31m\\u202eb\\x9b\\udc80ü\\n\\u2028\\t"
        )
        assert display.clean_lines("a\n\tb\r\n") == "a\n\tb\\r\n"

    def test_names_make_no_lines(self, redisq: Redisq, frontier: Frontier) -> None:
        """Whatever Redis holds as the name of a slot, a run or a worker is on one line."""
        fake = "x\nfake.example 7 paused\u2028fake"
        frontier.push([{"url": "https://a.example/", "meta": {"download_slot": fake}}])
        Member(frontier)
        key = "redisq:{books:0}:"
        (worker,) = frontier.status()["workers"]
        frontier.client.hset(key + "meta", "name", fake)
        frontier.client.hset(f"{key}worker:{worker['id']}", mapping={"host": fake, "release": fake})
        frontier.pause(fake)
        commands = (["status"], ["status", "books"], ["slots", "books"], ["workers", "books"])
        for command in (*commands, ["slots", "resume", "books", fake]):
            ran = redisq(*command)
            assert ran.code == 0
            assert not [line for line in ran.out.splitlines() if line.strip().startswith("fake")]
            assert command in (["status"],) or "\\nfake" in ran.out.replace("\n", "")


class TestSlots:
    def test_nothing_there(self, redisq: Redisq, frontier: Frontier, open_frontier: Opener) -> None:
        """No frontier, one that is not there, and several to choose from: one line, code 1."""
        assert redisq("slots").err.startswith("scrapy redisq: there is no frontier on redis://")
        for args in (["books"], ["pause", "books", "a.example"], ["drop", "books", "a.example"]):
            ran = redisq("slots", *args)
            assert ran == (1, "", "scrapy redisq: there is no frontier 'books'\n")
        frontier.push(some_urls(1))
        open_frontier("shop").push(some_urls(1))
        ran = redisq("slots")
        assert ran == (1, "", "scrapy redisq: name one of the frontiers: books, shop\n")

    def test_list(self, redisq: Redisq, frontier: Frontier) -> None:
        """What somebody should look at first, then the largest; how many more there are. In JSON
        they are one on each line, by default all."""
        frontier.push(f"https://{n % 60}.example/{n}" for n in range(600))
        frontier.push(f"https://large.example/{n}" for n in range(1_234))
        frontier.pause("7.example")
        frontier.limit("8.example", delay=2, rate="30/m", burst=5, concurrency=1)
        ran = redisq("slots", "--limit", "2")
        title, _, _, _, first, second, more = ran.out.splitlines()
        assert title == "books  61 slots, 1 paused"
        assert first.split()[:2] == ["7.example", "10"]
        assert "paused 0 s ago" in first or "paused 1 s ago" in first
        assert second.split() == ["large.example", "1,234", "0", "now"]
        assert more == "59 more: --limit 0 shows all, --json too."
        assert "11 more" in redisq("slots", "books").out
        ran = redisq("slots", "--limit", "0")
        assert "more" not in ran.out
        assert "2 s apart, 30/m burst 5, 1 at a" in ran.out
        assert "there is no frontier 'pause'" in redisq("slots", "--", "pause").err
        told = [json.loads(line) for line in redisq("slots", "books", "--json").out.splitlines()]
        assert len({slot["slot"] for slot in told}) == len(told) == 61
        (limited,) = (slot for slot in told if slot["slot"] == "8.example")
        assert (limited["rate"], limited["limit_from"], limited["queued"]) == (0.5, "person", 10)
        assert limited["ruled"].endswith("+00:00")
        (line,) = redisq("slots", "--json", "--limit", "1").out.splitlines()
        assert (json.loads(line)["slot"], json.loads(line)["next_start"]) == ("7.example", None)

    def test_ruling(self, redisq: Redisq, frontier: Frontier) -> None:
        """Each says what it did, and to how many requests; a limit may be given in steps. More is
        in docs/howto/limits.md, whose commands are run, too."""
        frontier.push(f"https://a.example/{n}" for n in range(3))
        Member(frontier).claim(1)
        assert redisq("slots", "pause", "a.example") == (
            0,
            "books: a.example is paused (2 queued, 1 leased). The crawl stays open for its "
            "requests until they are resumed or dropped.\n",
            "",
        )
        redisq("slots", "resume", "books", "a.example")
        assert "(it was not held up)" in redisq("slots", "resume", "a.example").out
        redisq("slots", "limit", "books", "a.example", "--delay", "0.5", "--rate", "100/h")
        told = redisq("slots", "limit", "a.example", "--concurrency", "2", "--rate", "0").out
        assert told == "books: a.example has 0.5 s apart, 2 at a time (2 queued, 1 leased)\n"
        told = redisq("slots", "limit", "new.example", "--delay", "1").out
        assert told == "books: new.example has 1 s apart (nothing is known of it yet)\n"
        for pattern in ("*", "*.example"):
            ran = redisq("slots", "limit", pattern, "--delay", "1")
            assert (ran.code, ran.out) == (1, "")
            assert f"{pattern} is no slot" in ran.err
            assert "REDISQ_SLOT_LIMITS" in ran.err

    def test_drop(self, redisq: Redisq, frontier: Frontier) -> None:
        """Only with --yes; `status` counts what was dropped."""
        frontier.push(f"https://a.example/{n}" for n in range(1_500))
        ran = redisq("slots", "drop", "books", "a.example")
        assert (ran.code, ran.out, "add --yes" in ran.err) == (1, "", True)
        assert ran.err.startswith("books: 1,500 queued requests of a.example would be dropped")
        ran = redisq("slots", "drop", "a.example", "--yes")
        assert ran == (0, "books: 1,500 requests of a.example dropped\n", "")
        assert redisq("slots").out == "books  no slots\n"
        assert "dropped 1,500" in " ".join(redisq("status").out.split())


class TestPush:
    def test_stdin(
        self, redisq: Redisq, frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Thousands of lines from a file: empty ones do not count, numbers are those of lines. What
        is broken in one is said: bytes, JSON, nesting without end."""
        lines = [f"https://a.example/{i}" for i in range(2_000)]
        lines[3] = ""
        lines[1_005:1_009] = ["no url", "\udcff", '{"a": NaN}', "{" + '"a":{' * 20_000]
        lines[-1] = "  https://last.example/\r"
        path = tmp_path / "urls"
        path.write_text("\ufeff" + "\n".join(lines), "utf-8", "surrogateescape")
        with path.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            ran = redisq("push", "books", "-")
        assert ran.out == "books: 1,995 new requests, 0 duplicates, 4 bad\n"
        told = ran.err.splitlines()
        assert [line.partition(": ")[0] for line in told] == [f"line {1_006 + n}" for n in range(4)]
        assert "not UTF-8 (byte 1)" in told[1]
        assert "not JSON" in told[2] and "not JSON" in told[3]
        assert frontier.status()["queued"] == 1_995

    def test_a_slow_pipe_is_not_waited_for(
        self, redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a producer writes is in the frontier while its pipe is still open."""
        reader, writer = os.pipe()
        ran: list[Ran] = []
        with os.fdopen(reader) as stdin, os.fdopen(writer, "wb", buffering=0) as pipe:
            monkeypatch.setattr(sys, "stdin", stdin)
            pushing = threading.Thread(target=lambda: ran.append(redisq("push", "books", "-")))
            pushing.start()
            try:
                pipe.write(b"https://a.example/1\nhttps://a.exam")
                wait_until(lambda: frontier.status()["queued"] == 1, 10, "the first")
                pipe.write(b"ple/2\nhttps://a.example/3")
                wait_until(lambda: frontier.status()["queued"] == 2, 10, "the second")
            finally:
                pipe.close()
                pushing.join(10)
        assert ran[0].out == "books: 3 new requests, 0 duplicates\n"

    def test_a_class_that_is_not_there(self, redisq: Redisq) -> None:
        """A fingerprinter that cannot be imported is one line that names the setting."""
        ran = redisq(
            "push", "books", "https://a.example/", REQUEST_FINGERPRINTER_CLASS="no.such.Class"
        )
        assert ran.code == 1
        assert ran.err.startswith("scrapy redisq: REQUEST_FINGERPRINTER_CLASS = 'no.such.Class'")


def test_reset(redisq: Redisq, frontier: Frontier) -> None:
    """Without --yes it only says what would be deleted; while workers live it is refused; a second
    time there is nothing to delete."""
    frontier.push(some_urls(1_234))
    worker = Member(frontier)
    ran = redisq("reset", "books")
    assert (ran.code, ran.out) == (1, "")
    assert all(text in ran.err for text in ("1,234 queued", "--yes", "1 live workers"))
    ran = redisq("reset", "books", "--yes")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("scrapy redisq: frontier 'books' has 1 live workers")
    assert frontier.status()["queued"] == 1_234
    worker.leave()
    assert redisq("reset", "books", "--yes") == (0, "books: deleted\n", "")
    assert frontier.client.dbsize() == 0
    assert redisq("reset", "books", "--yes").out == "books: there is no such frontier\n"


def test_an_embedded_server(redisq: Redisq, tmp_path: Path) -> None:
    """Started, it stays between commands; pushed requests are there; stopped, it is gone. With
    a REDISQ_URL of another kind there is none to speak of."""
    folder = tmp_path / ".scrapy" / "redisq"
    own = {"REDISQ_URL": "embedded://"}
    assert redisq("server", "start", **own).out.startswith("Running: Redis ")
    try:
        assert redisq("push", "books", "https://a.example/", **own).code == 0
        told = json.loads(redisq("server", "status", "--json", **own).out)
        assert told["running"] and told["kept"] and told["folder"] == str(folder.resolve())
        assert json.loads(redisq("status", "books", "--json", **own).out)["queued"] == 1
    finally:
        stopped = redisq("server", "stop", **own)
    assert stopped == (0, "Stopped\n", "")
    assert redisq("server", "status", **own).out.startswith("Not running in ")
    assert redisq("server", "stop", **own).out.endswith("is not running\n")
    ran = redisq("server", "start")
    assert (ran.code, "REDISQ_URL" in ran.err) == (1, True)


SHOP = """
import scrapy

SPIDER_MODULES = ["shop"]
ADDONS = {"scrapy_redisq.Addon": 500}
REQUEST_FINGERPRINTER_CLASS = "shop.ByPath"
REDISQ_FRONTIER = "shop-%(spider)s"


class ByPath:
    @classmethod
    def from_crawler(cls, crawler):
        assert crawler.settings["SPIDER_MODULES"]
        return cls()

    def fingerprint(self, request):
        return request.url.partition("?")[0].encode()


class Books(scrapy.Spider):
    name = "books"
    custom_settings = {"REDISQ_ORDER": "lifo"}


class Plays(scrapy.Spider):
    name = "plays"
    custom_settings = {"REDISQ_FRONTIER": "%(spider)s-%(arguments)s", "REDISQ_ORDER": "lifo"}
"""
"""The settings of a project, and its spiders."""


def test_in_a_project(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The project's fingerprinter and the spider's custom_settings count, as for workers. A
    frontier of no spider is begun, and said to be one; one with arguments is known, and is the one
    that autoscale watches."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    settings = Settings({"REDISQ_URL": redis_server.url})
    settings.setmodule("shop")

    def pushed(name: str, *urls: str) -> tuple[int, str, str, FrontierConfig | None]:
        code = main(["push", name, *urls], settings)
        with Frontier.from_url(redis_server.url, name) as frontier:
            return code, *capsys.readouterr(), frontier.config()

    urls = ["https://a.example/x?1", "https://a.example/x?2", "ftp://a.example/"]
    code, out, err, config = pushed("shop-books", *urls)
    assert (code, out) == (1, "shop-books: 1 new request, 1 duplicate, 1 bad\n")
    assert err.startswith("argument 3: ") and err.count("\n") == 1
    assert (config.order, config.shards, config.spider) == ("lifo", 1, "books")
    assert (config.fingerprinter, config.dupefilter) == ("shop.ByPath", "bloom")
    assert pushed("shop-boks", "http://a.example")[:3] == (
        0,
        "shop-boks: 1 new request, 0 duplicates\n",
        "scrapy redisq push: 'shop-boks' is the frontier of no spider of this project "
        "(theirs: shop-books, plays-…); a new one begins\n",
    )
    *told, config = pushed("plays-by=me", "http://a.example")
    assert told == [0, "plays-by=me: 1 new request, 0 duplicates\n", ""]
    assert (config.order, config.spider) == ("lifo", "plays")
    crawl = CrawlCommand(["scrapy", "crawl", "plays", "-a", "by=you"])
    assert _project_of(crawl, Namespace(name=None), Project(settings))[1] == "plays-by=you"
    sys.modules.pop("shop")


class TestProcesses:
    def test_importing_it_is_cheap(self, tmp_path: Path) -> None:
        """Every Scrapy command imports it: no reactor, nothing that only sub commands need."""
        code = (
            "import sys, scrapy_redisq.commands\n"
            "bad = {'twisted.internet.reactor', 'rich', 'scrapy_redisq.commands.main'}\n"
            "assert not bad & sys.modules.keys(), bad & sys.modules.keys()"
        )
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)

    def test_watch(
        self, redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a terminal a plain line each second; Ctrl-C ends it with 0."""
        frontier.push(some_urls(1_500))
        stop_after_two_looks(monkeypatch)
        ran = redisq("status", "books", "--watch")
        first, second = ran.out.splitlines()
        assert (ran.code, ran.err) == (0, "")
        assert "  books  stopped  created 1,500  finished 0  queued 1,500" in first
        assert "created 1,500" in second

    def test_watch_in_a_terminal(
        self, redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The table is redrawn with what has changed; Ctrl-C ends it with 0."""
        frontier.push(some_urls(1_500))
        for name, value in (("TERM", "xterm"), ("COLUMNS", "80"), ("LINES", "24")):
            monkeypatch.setenv(name, value)
        stop_after_two_looks(monkeypatch, lambda: frontier.push(["https://one.more.example/"]))
        with (
            terminal() as (theirs, written),
            os.fdopen(theirs, "w", closefd=False) as stdout,
            monkeypatch.context() as patch,
        ):
            patch.setattr(sys, "stdout", stdout)
            ran = redisq("status", "--watch")
        shown = written.decode()
        assert (ran.code, ran.err) == (0, "")
        assert shown.index("1,500") < shown.index("No worker is alive") < shown.index("1,501")


def stop_after_two_looks(
    monkeypatch: pytest.MonkeyPatch, between: Callable[[], object] = lambda: None
) -> None:
    """Ctrl-C comes in the second pause of ``--watch``."""
    pauses = itertools.count()

    def sleep(seconds: float) -> None:
        if next(pauses):
            raise KeyboardInterrupt
        between()

    monkeypatch.setattr(watching.time, "sleep", sleep)
