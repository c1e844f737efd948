"""README, its pages and the docstrings say what is so: examples are run, tables compared."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

import scrapy_redisq
from lab.launcher import Forked, fork
from lab.servers import RedisServer, wait_until
from lab.site import Answer, Hit, Site, linked_pages
from scrapy_redisq.commands.parser import make_parser
from scrapy_redisq.control import Frontier
from scrapy_redisq.ops.doctor import rights
from scrapy_redisq.settings.setting import settings_of
from scrapy_redisq.settings.settings import RedisqSettings
from tests.harness.command import Redisq
from tests.harness.crawl import Crawl

ROOT = Path(__file__).parents[2]
LUA = ROOT / "scrapy_redisq" / "frontier" / "lua"
# Pages for people who run crawls; those for developers name commands without their arguments.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for chapter in ("tutorial", "howto", "operate", "reference")
    for path in (ROOT / "docs" / chapter).glob("*.md")
)
TEXTS = {name: (ROOT / name).read_text("utf-8") for name in ["README.md", *PAGES]}

# The examples call `scrapy` and `python`: those of the environment that the tests run in.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page that are marked with ``language``."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXTS[page], re.M | re.S)


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page, each as rows of cells, without its head."""
    found = re.findall(r"^\|[- :|]+\|\n((?:^\|.*\|\n)+)", TEXTS[page], re.M)
    return [
        [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
        for table in found
    ]


# Tables


def test_settings_table() -> None:
    """The table of settings names each setting with its default, what it takes, and what for."""
    table = [row for table in tables("docs/reference/settings.md") for row in table]
    assert [row[:3] for row in table] == [
        [f"`{setting.name}`", f"`{setting.default!r}`", setting.check.takes]
        for setting in settings_of(RedisqSettings)
    ]
    assert all(len(row) == 4 and row[3].endswith(".") for row in table)


def test_commands_in_the_text() -> None:
    """Each `scrapy redisq …` that the text names is taken by the command line."""
    for command in set(re.findall(r"`scrapy redisq\s([^`]+)`", "".join(TEXTS.values()))):
        arguments = shlex.split(command)
        make_parser().parse_args(["push", "NAME", "URL"] if arguments == ["push"] else arguments)


# Examples


def block_with(page: str, word: str) -> str:
    """The first block of Python on a page that has a word."""
    return next(block for block in blocks(page, "python") if word in block)


class Example:
    """A spider of a page in a project of its own, and perhaps a module of shop/."""

    def __init__(
        self, folder: Path, server: RedisServer, spider: str, settings: str = "", **modules: str
    ) -> None:
        self.folder = folder
        (folder / "spider.py").write_text(spider)
        (folder / "alone.py").write_text(
            f"ADDONS = {{'scrapy_redisq.Addon': 500}}\nREDISQ_URL = {server.url!r}\n{settings}"
        )
        (folder / "shop").mkdir()
        for name, text in {"__init__": "", **modules}.items():
            (folder / f"shop/{name}.py").write_text(text)

    def start(self, site: Site, log: Path, *arguments: str) -> Forked:
        environment = {**ENVIRONMENT, "SCRAPY_SETTINGS_MODULE": "alone"}
        command = ["runspider", "spider.py", "-a", f"site={site.url}/", *arguments]
        return fork("scrapy", command, self.folder, log, environment)


def test_sink_of_your_own(redis_server: RedisServer, tmp_path: Path) -> None:
    """The pipeline that docs/howto/own-sink.md shows writes each page's item, with a key."""
    example = Example(
        tmp_path,
        redis_server,
        block_with("docs/tutorial/first-crawl.md", "Spider"),
        "ITEM_PIPELINES = {'shop.pipelines.LinesPipeline': 300}",
        pipelines=block_with("docs/howto/own-sink.md", "BatchPipeline"),
    )
    with Site(linked_pages(30)) as site:
        log = tmp_path / "log"
        assert example.start(site, log).wait(100) == 0, log.read_text()
        pages = {f"{site.url}{path}" for path in site.counts()}
    lines = [json.loads(line) for line in (tmp_path / "books.jsonl").read_text().splitlines()]
    assert sorted(line["url"] for line in lines) == sorted(pages)
    assert len({line["key"] for line in lines}) == len(pages) >= 30


def test_moving_from_scrapy_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    """The settings and the spider of the page crawl what the old list has, and fill the list of
    items that scrapy-redis filled."""
    page = "docs/howto/scrapy-redis.md"
    settings, spider = blocks(page, "python")
    (tmp_path / "shop/spiders").mkdir(parents=True)
    (tmp_path / "shop/settings.py").write_text(
        settings.replace("redis://localhost:6379/0", redis_server.url)
        + "SPIDER_MODULES = ['shop.spiders']"
    )
    (tmp_path / "shop/spiders/books.py").write_text(spider)
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    log = tmp_path / "log"
    with Site(linked_pages(20)) as site, redis_server.client(decode_responses=True) as client:
        client.rpush("books:start_urls", f"{site.url}/", f"{site.url}/7")
        worker = fork("scrapy", ["crawl", "books"], tmp_path, log, ENVIRONMENT)
        try:
            wait_until(lambda: client.llen("books:items") >= 20, 100, f"items come, see {log}")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(100) == 0
        finally:
            worker.kill()
        assert {json.loads(item)["url"] for item in client.lrange("books:items", 0, -1)} == {
            site.url + path for path in site.counts() if path != "/robots.txt"
        }


class Shop(Site):
    """Pages for those who have logged in, which takes a while."""

    def answer(self, hit: Hit) -> Answer | str | None:
        if hit.path == "/login":
            return Answer("in", headers={"Set-Cookie": "session=1; Path=/"}, delay=1)
        if "session=1" not in hit.headers.get("cookie", ""):
            return Answer("log in first", status=403)
        return self.page(hit.path)


def test_login(redis_server: RedisServer, tmp_path: Path) -> None:
    """Each worker with the middleware of docs/howto/sessions.md logs in before its first page."""
    middleware, setting, *_ = blocks("docs/howto/sessions.md", "python")
    spider = block_with("docs/tutorial/first-crawl.md", "Spider")
    settings = f"{setting}\nDOWNLOAD_DELAY = 0.1\n"
    example = Example(tmp_path, redis_server, spider, settings, middlewares=middleware)
    with Shop(linked_pages(40)) as site:
        workers = []
        for name in ("first", "second"):
            log = tmp_path / f"{name}.log"
            workers.append(example.start(site, log, "-s", f"USER_AGENT={name}"))
            wait_until(lambda: len(site.hits) > 2, 100, f"pages are fetched, see {log}")
        assert [worker.wait(100) for worker in workers] == [0, 0]
    pages = [hit for hit in site.hits if hit.path != "/login"]
    assert len(pages) > 40
    assert all("session=1" in hit.headers["cookie"] for hit in pages)
    assert {hit.agent for hit in pages} == {"first", "second"}


class Accounts(Site):
    """Pages of whoever has logged in, where each login ends the one before."""

    def __init__(self) -> None:
        super().__init__(linked_pages(15))
        self.logins: dict[str, str] = {}
        self.strangers: list[Hit] = []

    def answer(self, hit: Hit) -> Answer | str | None:
        if hit.path == "/login":
            user = hit.body.decode().partition("=")[2]
            self.logins[user] = f"{user}-{len(self.hits)}"
            cookie = f"session={self.logins[user]}; Path=/"
            return Answer("", 302, {"Set-Cookie": cookie, "Location": "/"}, delay=0.2)
        key = hit.headers.get("cookie", "").partition("=")[2]
        if key not in self.logins.values():
            self.strangers.append(hit)
        return self.page(hit.path)


def test_accounts(redis_server: RedisServer, tmp_path: Path) -> None:
    """What the spider of docs/howto/sessions.md asks for in a session stays with its login, and the
    session of a worker that dies begins anew in another one."""
    spider = "".join(blocks("docs/howto/sessions.md", "python")[-2:])
    settings = "REDISQ_LEASE_TTL = 2\nREDISQ_MAX_LEASES = 1\nDOWNLOAD_DELAY = 0.05\n"
    example = Example(tmp_path, redis_server, spider, settings)
    log = tmp_path / "second.log"
    with Accounts() as site:
        first = example.start(site, tmp_path / "first.log")
        wait_until(lambda: len(site.hits) > 4, 60, "a login and pages")
        first.kill()
        assert example.start(site, log).wait(100) == 0
    assert site.counts()["/login"] > 2
    assert not site.strangers
    for user, key in site.logins.items():
        pages = Counter(
            hit.path for hit in site.hits if hit.headers.get("cookie") == f"session={key}"
        )
        assert len(pages) == 16, user
        assert set(pages.values()) == {1}
    assert " logs in again" in log.read_text()
    assert "cannot be shared" not in log.read_text()


def test_sitemap(redis_server: RedisServer, tmp_path: Path) -> None:
    """The spider of docs/howto/recurring.md fetches what is new, and what has another time."""
    pages = {"/a": "2026-01-01", "/b": "2026-01-01", "/c": ""}

    def page(path: str) -> Answer | str:
        if path != "/sitemap.xml":
            return "<title>x</title>"
        of = {path: f"<lastmod>{at}</lastmod>" if at else "" for path, at in pages.items()}
        urls = "".join(f"<url><loc>{site.url}{path}</loc>{of[path]}</url>" for path in pages)
        return Answer(f"<urlset>{urls}</urlset>", content_type="application/xml")

    with Site(page) as site:
        spider = block_with("docs/howto/recurring.md", "class")
        spider = spider.replace("https://news.example", site.url).replace('"1h"', '"1s"')
        log = tmp_path / "log"
        worker = Example(tmp_path, redis_server, spider).start(site, log)
        try:
            counts = site.counts
            wait_until(lambda: counts()["/sitemap.xml"] > 1 and counts()["/c"], 60, f"see {log}")
            pages |= {"/b": "2026-02-01", "/d": "2026-02-01"}
            wait_until(lambda: counts()["/d"] and counts()["/b"] == 2, 20, f"see {log}")
            seen = counts()["/sitemap.xml"]
            wait_until(lambda: counts()["/sitemap.xml"] > seen + 1, 20, f"see {log}")
        finally:
            worker.kill()
    assert {path: counts()[path] for path in pages} == {"/a": 1, "/b": 2, "/c": 1, "/d": 1}


def check_fields(status: object) -> None:
    """It is as docs/reference/status.schema.json says, with all of the fields and no others."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs/reference/status.schema.json").read_text("utf-8"))
    jsonschema.validate(status, schema)


def test_fields_of_status(redisq: Redisq) -> None:
    """Also of a frontier that is not there, and of one that has no workers."""
    for _ in range(2):
        check_fields(json.loads(redisq("status", "books", "--json").out))
        redisq("push", "books", "http://host.example/")


def test_fields_of_slots(frontier: Frontier) -> None:
    """`slots --json` has exactly the fields that docs/operate/watching.md lists."""
    frontier.push(["http://host.example/"])
    told = frontier.slot("host.example").to_json()
    of_slots = tables("docs/operate/watching.md")[-1]
    words = {name for row in of_slots for name in re.findall(r"`(\w+)`", row[0])}
    assert words == {"frontier", *told}


def run_lines(redisq: Redisq, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What commands of the documents say when they are run one after the other, in this process."""
    said = []
    for line in lines:
        piped, _, command = line.rpartition(" | ")
        program, name, *arguments = shlex.split(command)
        assert (program, name) == ("scrapy", "redisq"), line
        with tempfile.TemporaryFile("w+") as stdin:
            if piped:
                echo, text = shlex.split(piped)
                assert echo == "echo"
                stdin.write(text + "\n")
                stdin.seek(0)
            monkeypatch.setattr(sys, "stdin", stdin)
            ran = redisq(*arguments)
        assert ran.code == 0, ran.err
        said += ran.out.splitlines()
    return said


def test_commands_of_the_politeness(redisq: Redisq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell examples of docs/howto/limits.md work one after the other."""
    lines = "".join(blocks("docs/howto/limits.md", "sh")).splitlines()
    _, *lines = run_lines(
        redisq, ["scrapy redisq push books https://example.com/", *lines], monkeypatch
    )
    said = [line.removeprefix("books: ") for line in lines]
    assert said[0].startswith("example.com is paused (1 queued, 0 leased)")
    assert said[1:] == [
        "example.com goes on (1 queued, 0 leased)",
        "example.com has 2 s apart, 30/m burst 5, 1 at a time (1 queued, 0 leased)",
        "the settings hold again for example.com: no limit (1 queued, 0 leased)",
        "1 request of example.com dropped",
    ]


def test_commands_of_feeding_and_dead_letters(
    redisq: Redisq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell examples of both pages work one after the other."""
    pages = ("docs/howto/feed.md", "docs/howto/dead-letters.md")
    lines = "".join(block for page in pages for block in blocks(page, "sh")).splitlines()
    lines = [line for line in lines if not line.startswith("redis-cli RPUSH books:start_urls ")]
    assert run_lines(redisq, lines, monkeypatch) == [
        "books: 1 new request, 0 duplicates",
        "books: 1 new request, 0 duplicates",
        "books: no dead letters",
        "books: 0 dead letters requeued",
        "books: 0 dead letters exported to dead.jsonl",
        "books: 0 dead letters purged",
    ]


def test_python_example(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of `Frontier` pushes and counts."""
    example, _ = blocks("docs/howto/feed.md", "python")
    exec(example.replace("redis://localhost:6379/0", redis_server.url), {})
    assert capsys.readouterr().out == "1 1\n"


def test_calculator(capsys: pytest.CaptureFixture[str]) -> None:
    """The calculator of docs/operate/capacity.md prints what the page says."""
    page = "docs/operate/capacity.md"
    exec(*blocks(page, "python"), {})
    assert f"It prints `{capsys.readouterr().out.strip()}`." in TEXTS[page]


def test_docstrings(redis_server: RedisServer) -> None:
    """The examples in docstrings print what they say; `redis://localhost` is the test's server."""
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for path in Path(scrapy_redisq.__file__).parent.rglob("*.py"):
        if ">>> " not in path.read_text("utf-8"):
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for test in finder.find(importlib.import_module(module.removesuffix(".__init__"))):
            for example in test.examples:
                example.source = example.source.replace("redis://localhost", redis_server.url)
            runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0


# Servers


@pytest.mark.servers("every")
def test_versions_are_those_of_the_tests(each_binary: Path) -> None:
    """What README calls checked is what the tests run on."""
    told = subprocess.run([each_binary, "--version"], capture_output=True, text=True, check=True)
    version = re.match(r"(Redis|Valkey) server v=(\d+\.\d+)", told.stdout)
    assert version
    checked = re.search(r"on Redis [^\n]*Valkey [^\n]*\d", TEXTS["README.md"])
    assert checked
    (line,) = re.findall(rf"{version[1]} [\d., and]*", checked[0])
    assert version[2] in re.findall(r"[\d.]+\d", line)


def acl() -> list[str]:
    (user,) = re.findall(r"^```\nuser (.*?)^```", TEXTS["docs/operate/redis.md"], re.M | re.S)
    return str(user).split()


def test_acl_names_the_commands_of_the_scripts() -> None:
    """The ACL allows each command that a script calls, and no others but those named here. The
    doctor tries each of them."""
    called = set()
    for file in LUA.rglob("*.lua"):
        for call in re.findall(
            r"\b(?:redis\.p?call|call|ask|scan)\(\s*(?:left and )?('[^,)]+)",
            file.read_text("utf-8"),
        ):
            called |= {name.lower() for name in re.findall(r"'([A-Z.]+)'", call)}
    bloom = set(re.findall(r"\+(bf\.\w+)", TEXTS["docs/operate/redis.md"]))
    by_clients = {"ping", "select", "info", "role", "scan", "eval", "evalsha"}
    by_clients |= {"subscribe", "unsubscribe", "bgrewriteaof"}
    allowed = {rule[1:] for rule in acl() if rule.startswith("+")}
    by_workers = by_clients - {"info", "role", "scan"}
    assert allowed - by_workers == {*rights.IN_SCRIPTS, "info", "role", "scan"}
    assert bloom == set(rights.OF_BLOOM)
    (feeds,) = re.findall(r"these commands:\s+`\+([^`]+)`", TEXTS["docs/operate/redis.md"])
    allowed |= set(feeds.split(" +"))
    assert allowed | bloom == called | by_clients
    assert not allowed & bloom


@pytest.mark.servers("ends")
def test_acl_suffices(tmp_path: Path, each_binary: Path) -> None:
    """A user with the rights of docs/operate/redis.md can crawl, and do what commands do."""
    server = RedisServer(each_binary, aof=True)
    asking = server.client(decode_responses=True)
    with contextlib.closing(server), asking as client, Site(linked_pages(20)) as site:
        client.execute_command("ACL", "SETUSER", *acl())
        url = server.url.replace("://", "://crawler:PASSWORD@")
        for dupefilter in ("Bloom", "Exact"):
            settings = {
                "REDISQ_URL": url,
                "DUPEFILTER_CLASS": f"scrapy_redisq.{dupefilter}DupeFilter",
            }
            crawl = Crawl("faulty", tmp_path, settings=settings, arguments={"site": site.url})
            assert crawl.wait().reason == "finished", crawl.log
            with Frontier.from_url(url, "faulty") as frontier:
                assert frontier.status()["dead"] == 4
                assert len(list(frontier.dead())) == 4
                assert frontier.requeue() == 4
                for rule in (frontier.pause, frontier.resume, frontier.unlimit):
                    rule("127.0.0.1")
                assert [slot.queued for slot in frontier.slots()] == [4]
                assert frontier.drop("127.0.0.1") == 4
                assert frontier.push([f"{site.url}/new"]).accepted == 1
                assert frontier.url(f"{site.url}/new")["seen"]
                assert frontier.why()["reason"] == "no_workers"
                frontier.reset()
            assert list(client.scan_iter("*")) == []
        denied = {entry["object"] for entry in client.acl_log()}
    assert not denied
