"""The example project: its site, its pipeline, the demo's verdict and the demo itself."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from parsel import Selector

from tests.harness.servers import wait_until

EXAMPLE = Path(__file__).resolve().parent.parent / "example_project"
sys.path.insert(0, str(EXAMPLE))

from bookshop.items import Book, Page  # noqa: E402
from bookshop.pipelines import Database  # noqa: E402
from shop_site.catalogue import Catalogue  # noqa: E402
from shop_site.html import render  # noqa: E402
from shop_site.server import Hit, ShopServer  # noqa: E402
from showcase.observation import FrontierView, SiteLog  # noqa: E402
from showcase.verdict import Killed, Outcome, judge  # noqa: E402

# The site


def links(shop: Catalogue, path: str) -> set[str]:
    return set(Selector(render(shop, path).decode()).css("a::attr(href)").getall())


def reached(shop: Catalogue, *, by_redirects: bool = True) -> tuple[set[str], set[str]]:
    """The pages reachable from home, and all other paths met on the way."""
    pages, others, todo = set(), set(), ["/"]
    while todo:
        path = todo.pop()
        if path in pages or path in others:
            continue
        if path in shop.pages:
            pages.add(path)
            todo += links(shop, path)
        else:
            others.add(path)
            if by_redirects and path in shop.redirects:
                todo.append(shop.redirects[path])
    return pages, others


@pytest.mark.parametrize("size", [50, 300, 1999, 2000])
def test_shop_is_its_catalogue(size: int) -> None:
    """A shop has exactly as many pages as asked for; links lead to all of them, and to every
    redirect and every dead link, and nowhere else."""
    shop = Catalogue(size)
    assert len(shop.pages) == size
    pages, others = reached(shop)
    assert pages == set(shop.pages)
    assert others == shop.redirects.keys() | shop.missing


def test_shop_of_the_demo() -> None:
    """The demo's shop has books, listings, authors, redirects and dead links in earnest."""
    shop = Catalogue()
    kinds = Counter(kind for kind, _, _ in shop.pages.values())
    assert kinds == {"home": 1, "category": 100, "author": 139, "book": 1760}
    assert len(shop.redirects) == 87
    assert len(shop.missing) == 18


def test_redirects_lead_to_pages_that_nothing_else_leads_to() -> None:
    """A crawl that loses redirects loses pages."""
    shop = Catalogue(300)
    pages, _ = reached(shop, by_redirects=False)
    assert 0 < len(shop.pages) - len(pages) < 10


def test_catalogue_refuses_impossible_sizes() -> None:
    """A shop too small for its kinds of pages is refused, not made with fewer or more pages."""
    with pytest.raises(ValueError, match="50 to 100,000"):
        Catalogue(49)


@pytest.fixture
def shop_server() -> Iterator[ShopServer]:
    with ShopServer(Catalogue(50)) as server:
        yield server


def test_server_answers_and_logs_over_one_connection(shop_server: ShopServer) -> None:
    """Pages, redirects, dead links and other methods get their status on one connection; each
    is in the log with its agent, the log itself is not."""
    shop = shop_server.shop
    missing = next(iter(shop.missing))
    connection = http.client.HTTPConnection(urlsplit(shop_server.url).netloc, timeout=10)
    answers = []
    try:
        for method, path in [
            ("GET", "/?a=b"),
            ("GET", "/new"),
            ("GET", missing),
            ("POST", "/"),
            ("HEAD", "/"),
        ]:
            connection.request(method, path, headers={"User-Agent": "me"})
            response = connection.getresponse()
            answers.append((response.status, response.getheader("Location"), response.read()))
        connection.request("GET", "/__log")
        log = json.loads(connection.getresponse().read())
        connection.request("GET", "/__stats")
        stats = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    page = render(shop, "/")
    assert [(status, to) for status, to, _ in answers] == [
        (200, None),
        (301, "/latest"),
        (404, None),
        (405, None),
        (200, None),
    ]
    assert answers[0][2] == page
    assert answers[4][2] == b""
    assert [entry[1:] for entry in log] == [
        ["/", 200, "me"],
        ["/new", 301, "me"],
        [missing, 404, "me"],
        ["/", 405, "me"],
        ["/", 200, "me"],
    ]
    assert stats == {"requests": 5, "pages": 1, "of_pages": 50, "repeated": 1}


def test_server_stops_with_connections_open() -> None:
    """A client that keeps its connection, or leaves in the middle of a request, holds nobody up."""
    with ShopServer(Catalogue(50), delay=60) as server:
        address = urlsplit(server.url)
        waiting = http.client.HTTPConnection(address.netloc, timeout=10)
        waiting.request("GET", "/")
        wait_until(lambda: server.hits, 5, "the request has arrived")
    waiting.close()
    assert not any(thread.name == "shop" for thread in threading.enumerate())


# The pipeline


def test_rows_are_upserted_by_url(tmp_path: Path) -> None:
    """A page delivered to two workers is one row, with the newer values and a count of both."""
    path = tmp_path / "result.sqlite"
    first, second = Database(path, "host:1"), Database(path, "host:2")
    first.store(Page("http://x/1", "book", "Old", "http://x/"))
    first.store(Book("http://x/1", "Old", "A", "C", 100, 1, False))
    second.store(Page("http://x/1", "book", "New", "http://x/2"))
    second.store(Book("http://x/1", "New", "B", "D", 200, 2, True))
    second.store(Page("http://x/2", "home", "Other", ""))
    first.close()
    second.close()
    connection = sqlite3.connect(path)
    pages = connection.execute("SELECT * FROM pages ORDER BY url").fetchall()
    books = connection.execute("SELECT * FROM books").fetchall()
    connection.close()
    assert pages == [
        ("http://x/1", "book", "New", "http://x/2", "host:2", 2),
        ("http://x/2", "home", "Other", "", "host:2", 1),
    ]
    assert books == [("http://x/1", "New", "B", "D", 200, 2, 1, "host:2", 2)]


def test_workers_may_open_the_result_at_the_same_moment(tmp_path: Path) -> None:
    """SQLite refuses write-ahead logging at once, whatever its timeout, while another process is
    about to write the new file; a worker that starts in that moment waits instead of failing."""
    path = tmp_path / "result.sqlite"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE being_made (a)")
    other.execute("BEGIN IMMEDIATE")
    opened: list[Database] = []
    worker = threading.Thread(target=lambda: opened.append(Database(path, "host:1")))
    worker.start()
    worker.join(0.3)
    waited = worker.is_alive()
    other.execute("COMMIT")
    other.close()
    worker.join(10)
    for database in opened:
        database.close()
    assert (waited, len(opened)) == (True, 1)


# The verdict


@pytest.fixture
def good() -> Outcome:
    """A crawl of which pid 2 was killed, holding three requests, one of them fetched again."""
    shop = Catalogue(50)
    hits = [
        Hit(0.0, path, 200, f"x (pid {1 + number % 2})")
        for number, path in enumerate([*shop.pages, *shop.redirects, *shop.missing])
    ]
    again = next(hit for hit in hits if hit.agent.endswith("(pid 2)"))
    hits.append(again._replace(agent="x (pid 1)"))
    hits += [Hit(0.0, "/robots.txt", 200, "x (pid 1)")] * 2
    return Outcome(
        shop=shop,
        site=SiteLog.read(shop, hits),
        frontier=FrontierView(),
        pages=set(shop.pages),
        books={book.path for book in shop.books},
        reasons=["finished"],
        killed=Killed(pid=2, held=3),
        kill_wanted=True,
    )


def complaints(outcome: Outcome) -> list[str]:
    return [check.complaint for check in judge(outcome) if check.complaint]


def test_a_good_crawl_has_no_complaints(good: Outcome) -> None:
    """What the killed worker held may be fetched again; robots.txt may be by everybody."""
    assert len(good.site.repeated) == 1
    assert complaints(good) == []


def test_each_broken_promise_is_said(good: Outcome) -> None:
    """Every way in which a crawl can break its promise leads to a complaint that names it."""
    path = next(iter(good.site.repeated))
    broken = {
        "pages are missing": replace(good, pages=good.pages - {"/"}),
        "pages in the result: 1 are not there: /": replace(good, pages=good.pages - {"/"}),
        "pages in the result: 1 do not belong": replace(good, pages=good.pages | {"/x"}),
        "books in the result: 3": replace(good, books=set(list(good.books)[3:])),
        "the killed worker held 0": replace(good, killed=Killed(pid=2, held=0)),
        "did not hold": replace(good, killed=Killed(pid=1, held=3)),
        "fetched twice": replace(good, killed=None, kill_wanted=False),
        f"did not hold: {path}": replace(good, site=replace(good.site, repeated={path: [2, 1, 1]})),
        "never tried": replace(good, site=replace(good.site, unvisited_redirects=1)),
        "does not link to: /y": replace(good, site=replace(good.site, unknown=["/y"])),
        "1 requests are left": replace(good, frontier=FrontierView(leased=1)),
        "2 requests became dead": replace(good, frontier=FrontierView(dead=2)),
        "did not end with 'finished': shutdown": replace(good, reasons=["finished", "shutdown"]),
        "no worker was killed": replace(good, killed=None, site=replace(good.site, repeated={})),
    }
    for complaint, outcome in broken.items():
        assert any(complaint in said for said in complaints(outcome)), complaint


# The demo


def start_demo(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE / "demo.py"), *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run_demo(folder: Path, *arguments: str) -> tuple[int, str]:
    process = start_demo(folder, *arguments)
    try:
        said, _ = process.communicate(timeout=100)
    finally:
        process.kill()
    return process.returncode, said


def left_running(folder: Path) -> list[list[str]]:
    """Command lines of processes that name ``folder``: workers by their settings, Redis by its
    title or its working directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        info = process.info
        words = info["cmdline"] or []
        here = str(folder) in " ".join(words) or str(folder) in (info["cwd"] or "")
        if here and info["status"] != psutil.STATUS_ZOMBIE:
            found.append(words)
    return found


@pytest.fixture
def temp_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's TMPDIR: what it leaves behind is found here."""
    return tmp_path_factory.mktemp("t")


def test_demo_kills_a_worker_and_loses_nothing(temp_folder: Path) -> None:
    """Two processes crawl the shop, one is killed half-way; every page is in the result, only
    what it held was fetched twice, and nothing stays behind."""
    code, said = run_demo(temp_folder, "--pages=200", "--workers=2", "--lease-ttl=2")
    assert code == 0, said
    assert "killed with SIGKILL" in said
    assert "took over" in said
    assert "WRONG" not in said
    assert left_running(temp_folder) == []
    assert list(temp_folder.iterdir()) == []


def test_demo_without_a_kill_fetches_nothing_twice(temp_folder: Path) -> None:
    """Where nobody is killed, nothing at all may be fetched twice, redirects included."""
    code, said = run_demo(temp_folder, "--pages=100", "--workers=2", "--no-kill", "--delay=0.2")
    assert code == 0, said
    assert "killed" not in said


def test_demo_says_why_a_worker_did_not_start(temp_folder: Path) -> None:
    """A worker that cannot start ends the demo at once, with the end of its log and its folder."""
    code, said = run_demo(temp_folder, "--pages=300", "--workers=2", "--lease-ttl=-1")
    assert code == 1, said
    assert "FAILED: worker" in said
    assert "REDISQ_LEASE_TTL" in said
    assert (next(temp_folder.iterdir()) / "worker-1.log").exists()
    assert left_running(temp_folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_interrupted_stops_what_it_started(
    temp_folder: Path, number: signal.Signals
) -> None:
    """Ctrl-C and SIGTERM end the demo, its workers and its Redis."""
    process = start_demo(temp_folder, "--workers=2", "--delay=1")
    try:
        wait_until(lambda: len(left_running(temp_folder)) >= 3, 30, "workers and Redis are up")
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, said
    assert left_running(temp_folder) == []
