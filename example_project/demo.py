"""Four ``scrapy crawl`` processes share one frontier, one is killed half-way, nothing is lost.

Run by ``make demo``, or by hand: ``python demo.py [--database postgres] [--pages 2000]``. Starts
the example site, an embedded Redis and the database, all its own, and stops what it started. Exit
code 0 only if the database has every page once and nothing was fetched twice but what the killed
worker held.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape
from sqlalchemy.exc import SQLAlchemyError

from scrapy_redisq.control import Frontier
from scrapy_redisq.errors import RedisqError
from shop_site.catalogue import Catalogue
from shop_site.server import ShopServer
from showcase.database import DATABASES, NotStarted
from showcase.observation import FrontierView, Result, SiteLog
from showcase.verdict import Killed, Outcome, judge
from showcase.view import View, final_checks, final_workers
from showcase.workers import Crew, Worker

LOOK_EVERY = 0.25  # seconds
STALLED_AFTER = 30.0  # seconds without a new page: something is wrong


class DemoError(Exception):
    """The crawl cannot be judged; the message says in plain words why."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--database", choices=DATABASES, default="sqlite", help="for the items (default: sqlite)"
    )
    parser.add_argument("--workers", type=int, default=4, help="processes (default: 4)")
    parser.add_argument("--pages", type=int, default=2000, help="size of the site (default: 2000)")
    parser.add_argument(
        "--delay", type=float, default=0.1, help="seconds the site takes for a page (default: 0.1)"
    )
    parser.add_argument("--lease-ttl", type=float, default=5, help="seconds (default: 5)")
    parser.add_argument("--no-kill", action="store_true", help="let all workers live")
    parser.add_argument("--keep", action="store_true", help="keep logs, Redis and database")
    parser.add_argument("--timeout", type=float, default=120, help="seconds (default: 120)")
    options = parser.parse_args(arguments)
    if options.workers < (1 if options.no_kill else 2):
        parser.error("at least two workers are needed, so that one can be killed (or --no-kill)")
    return options


class Interrupted(Exception):
    """Raised when the demo was told to end, by Ctrl-C or another signal."""


class Interrupts:
    """Notes signals that end the demo. They take effect where `check` is called, and not in the
    midst of starting a process, which would then be nobody's to stop."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.number = number

    def check(self) -> None:
        if self.number:
            raise Interrupted


class Demo:
    """One run: the shop, its crawlers and what they leave behind in ``folder``."""

    def __init__(
        self,
        options: argparse.Namespace,
        console: Console,
        folder: Path,
        interrupts: Interrupts,
    ) -> None:
        self.options = options
        self.interrupts = interrupts
        self.console = console
        self.folder = folder
        self.shop = Catalogue(options.pages)
        self.killed: Killed | None = None
        self.recovered = False

    def run(self) -> bool:
        """Whether everything was as promised. Raises `DemoError` if that cannot be said."""
        redis_url = f"embedded://{self.folder / 'redis'}"
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(ShopServer(self.shop, delay=self.options.delay))
            self.console.print(
                f"A bookshop of {len(self.shop.pages):,} pages at {server.url}/, "
                f"redirects: {len(self.shop.redirects)}, dead links: {len(self.shop.missing)}",
                highlight=False,
                soft_wrap=True,
            )
            self.hits = server.hits
            database = self.start_database(stack)
            self.frontier = stack.enter_context(Frontier.from_url(redis_url, "books"))
            self.crew = stack.enter_context(Crew())
            settings = {
                "REDISQ_URL": redis_url,
                "REDISQ_LEASE_TTL": self.options.lease_ttl,
                "REDISQ_DATABASE_URL": database,
                "LOG_LEVEL": "INFO",
            }
            for number in range(1, self.options.workers + 1):
                log = self.folder / f"worker-{number}.log"
                self.crew.append(Worker(number, server.url, settings, log))
                self.interrupts.check()
            with View(self.console, len(self.shop.pages)) as view:
                view.event(f"{len(self.crew)} times 'scrapy crawl books' on one frontier")
                self.watch(view)
            return self.report(view.elapsed)

    def start_database(self, stack: contextlib.ExitStack) -> str:
        """The URL of the database, which ends with ``stack``."""
        url = stack.enter_context(DATABASES[self.options.database](self.folder))
        self.result = stack.enter_context(contextlib.closing(Result(url)))
        by = ""
        if self.options.database == "postgres" and os.geteuid() == 0:
            by = ", run by the user 'pgserver', not root"
        self.console.print(
            f"Its pages and books go to {self.result.database}{by}", highlight=False, soft_wrap=True
        )
        return url

    def watch(self, view: View) -> None:
        """Look on until no worker runs any more, and kill one half-way."""
        half = len(self.shop.pages) // 2
        deadline = time.monotonic() + self.options.timeout
        fetched, fetched_at = 0, time.monotonic()
        while self.crew.running:
            self.interrupts.check()
            self.stop_if_one_failed()
            site = SiteLog.read(self.shop, self.hits)
            frontier = FrontierView.read(self.frontier)
            if self.killed is None and not self.options.no_kill and site.fetched >= half:
                self.kill_one(view, frontier)
            self.tell_recovery(view, frontier)
            view.update(self.crew, site, frontier, self.result)
            if site.fetched > fetched:
                fetched, fetched_at = site.fetched, time.monotonic()
            if time.monotonic() > min(deadline, fetched_at + STALLED_AFTER):
                witness = next((w for w in self.crew if w.running), self.crew[0])
                raise DemoError(
                    f"not finished after {view.elapsed:.0f} s: {fetched:,} of "
                    f"{len(self.shop.pages):,} pages fetched, {frontier.left:,} requests left; "
                    f"the log of worker {witness.number} ends with\n{witness.last_lines()}"
                )
            time.sleep(LOOK_EVERY)
        self.stop_if_one_failed()
        self.tell_recovery(view, FrontierView.read(self.frontier))

    def tell_recovery(self, view: View, frontier: FrontierView) -> None:
        if self.killed and frontier.reclaimed and not self.recovered:
            self.recovered = True
            view.event(f"the others took over {frontier.reclaimed:,} requests of the dead one")

    def stop_if_one_failed(self) -> None:
        """There is nothing to wait for when a worker has ended as it should not."""
        if failed := self.crew.failed():
            raise DemoError(
                f"worker {failed.number} ended with {failed.reason}; its log ends with\n"
                f"{failed.last_lines()}"
            )

    def kill_one(self, view: View, frontier: FrontierView) -> None:
        """SIGKILL for the worker that holds most; what it held is known only once it is dead."""
        victim = max(self.crew, key=lambda worker: frontier.leases.get(worker.pid, 0))
        if not victim.running or not frontier.leases.get(victim.pid):
            return  # nobody holds anything at the moment: at the next look
        victim.kill()
        held = FrontierView.read(self.frontier).leases.get(victim.pid, 0)
        self.killed = Killed(victim.pid, held)
        view.event(
            f"[red]worker {victim.number} (pid {victim.pid}) killed with SIGKILL, "
            f"{held:,} requests in its hands[/]"
        )

    def report(self, seconds: float) -> bool:
        """Print the tables; whether every check was kept."""
        site = SiteLog.read(self.shop, self.hits)
        checks = judge(
            Outcome(
                shop=self.shop,
                site=site,
                frontier=FrontierView.read(self.frontier),
                pages=[urlsplit(url).path for url in self.result.urls("pages")],
                books=[urlsplit(url).path for url in self.result.urls("books")],
                reasons=[worker.reason for worker in self.crew if not worker.killed],
                killed=self.killed,
                kill_wanted=not self.options.no_kill,
            )
        )
        ends = sorted(worker.ended for worker in self.crew if worker.ended and not worker.killed)
        self.console.print()
        self.console.print(
            final_workers(self.crew, site, self.result.pages_by_pid(), self.killed),
            final_checks(checks, self.result.database),
            f"{seconds:.1f} s; the workers ended within {ends[-1] - ends[0]:.1f} s of each other",
            highlight=False,
        )
        for check in checks:
            if check.complaint:
                self.console.print(f"[bold red]WRONG:[/] {escape(check.complaint)}", soft_wrap=True)
        return not any(check.complaint for check in checks)


def main() -> int:
    options = parse()
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="redisq-demo-"))
    good = False
    interrupts = Interrupts()
    try:
        good = Demo(options, console, folder, interrupts).run()
    except Interrupted:
        console.print("interrupted; everything that was started is stopped")
    except (DemoError, NotStarted, RedisqError, SQLAlchemyError, ValueError) as error:
        console.print(f"[bold red]FAILED:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    finally:
        if options.keep or not (good or interrupts.number):
            console.print(f"logs and database are in {folder}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 128 + interrupts.number if interrupts.number else 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
