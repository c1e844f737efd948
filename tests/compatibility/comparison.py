"""Crawls by Scrapy's scheduler and by this one, and what differs between them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.settings import Settings
from scrapy.spiderloader import SpiderLoader

from lab.launcher import Forked, fork
from tests.compatibility.compared import Compared, Hosts

if TYPE_CHECKING:
    from tests.compatibility.worker import Crawl, Job

ROOT = Path(__file__).parent.parent.parent
MODES = {"own": 1, "one": 1, "two": 2}
"""How a spider is crawled, and by how many processes: "own" is Scrapy's scheduler."""

ALONE = ("follow", "retries", "start_items", "signals", "files", "monitored")
"""Those that "one" crawls: spiders whose stats or items differ with two workers, and so are not
compared there."""

LIMIT = 200
"""Seconds after which crawls are given up."""

HANDLER = "tests.project.crawls.several.PatientHandler"
COMMON: dict[str, Any] = {
    "DOWNLOAD_HANDLERS": {"http": HANDLER, "https": HANDLER},
    "SPIDER_MODULES": ["tests.compatibility.spiders"],
    "SPIDER_MIDDLEWARES": {"tests.compatibility.compared.Gate": 1_000_000},
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "ROBOTSTXT_OBEY": False,
    "RETRY_TIMES": 2,
    "DOWNLOAD_DELAY": 0,
    "CONCURRENT_ITEMS": 16,
    "LOG_LEVEL": "WARNING",
}
SHARED = {
    "ADDONS": {"scrapy_redisq.Addon": 500},
    "REDISQ_RETRY_DELAYS": [0.05],
    # Each worker has a folder of its own among them.
    "REDISQ_SAME_ARGUMENTS": False,
    "REDISQ_CLOSE_TIMEOUT": 60,
}

# What is different in any two crawls.
_OTHER_STATS = re.compile(
    r"start_time|finish_time|elapsed_time_seconds|.*_per_minute|memusage/.*|log_count/.*"
    r"|redisq/.*|feedexport/.*"
)


@dataclass
class Outcome:
    """What a spider did, by however many workers."""

    pages: Counter[str]
    items: Counter[str] = field(default_factory=Counter)
    stats: dict[str, Any] = field(default_factory=dict)
    log: set[str] = field(default_factory=set)

    def add(self, report: dict[str, Any], clean: Cleaner) -> None:
        """Add what one worker did."""
        self.items.update(clean(json.dumps(item, sort_keys=True)) for item in report["items"])
        self.log |= {clean(" ".join(filter(None, entry))) for entry in report["log"]}
        for name, value in report["stats"].items():
            if _OTHER_STATS.fullmatch(name):
                continue
            name = clean(name)  # noqa: PLW2901
            if isinstance(value, str):
                self.stats[name] = self.stats.get(name, frozenset()) | {clean(value)}
            elif name.endswith("_max"):
                self.stats[name] = max(self.stats.get(name, 0), value)
            elif value is not None:
                self.stats[name] = self.stats.get(name, 0) + value


class Cleaner:
    """Takes out of a text what is different in any two crawls: hosts, ports, folders, times."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __call__(self, text: str) -> str:
        text = re.sub(r"127\.0\.0\.(\d+)(:\d{4,})?", self._host, text)
        text = re.sub(r"0x[0-9a-f]+|\bline \d+\b", "…", text)
        return text.replace(self._folder, "FOLDER")

    @staticmethod
    def _host(match: re.Match[str]) -> str:
        return "main" if int(match[1]) % 2 else "other"


class Comparison:
    """Runs spiders by each scheduler, and keeps what they did."""

    def __init__(self, spiders: tuple[str, ...], folder: Path, redis_url: str) -> None:
        self.spiders, self.folder, self._redis_url = spiders, folder, redis_url
        loader = SpiderLoader.from_settings(Settings(COMMON))
        self.classes: list[type[Compared]] = [loader.load(each) for each in spiders]
        self.outcomes: dict[str, dict[str, Outcome]] = {}

    def run(self) -> None:
        """Crawl with Scrapy's scheduler, and with this one by one and by two workers, at once."""
        with contextlib.ExitStack() as stack:
            pages = [each.pages for each in self.classes]
            sites = {mode: stack.enter_context(Hosts(pages)) for mode in MODES}
            processes = {}
            for mode, workers in MODES.items():
                for worker in range(workers):
                    processes[mode, worker] = self._start(mode, worker, sites[mode])
                    stack.callback(processes[mode, worker].kill)
            for (mode, worker), process in processes.items():
                try:
                    code = process.wait(LIMIT)
                except subprocess.TimeoutExpired:
                    code = -1
                assert code == 0, self._output(mode, worker).read_text()[-6000:]
            for mode, site in sites.items():
                self.outcomes[mode] = self._gather(mode, site)

    def _start(self, mode: str, worker: int, site: Hosts) -> Forked:
        """One process that crawls all spiders."""
        settings: dict[str, Any] = {**COMMON}
        if mode != "own":
            frontier = f"{mode}-%(spider)s"
            # So many crawls in a process may keep its event loop for a while.
            url = f"{self._redis_url}?socket_timeout=60"
            settings |= {**SHARED, "REDISQ_URL": url, "REDISQ_FRONTIER": frontier}
            if mode == "two":  # or one of them would take all
                settings["REDISQ_MAX_LEASES"] = 1
        crawls = [
            self._crawl(mode, spider, worker, site, number)
            for number, spider in self._crawled(mode)
        ]
        output = self._output(mode, worker)
        report, file = output.with_suffix(".json"), output.with_suffix(".job")
        job: Job = {"crawls": crawls, "settings": settings, "report": str(report)}
        file.write_text(json.dumps(job))
        return fork("tests.compatibility.worker", [str(file)], ROOT, output, os.environ)

    def _crawled(self, mode: str) -> list[tuple[int, str]]:
        """Spiders, each by the number of its hosts."""
        numbered = enumerate(self.spiders)
        return [(n, spider) for n, spider in numbered if mode != "one" or spider in ALONE]

    def _crawl(self, mode: str, spider: str, worker: int, site: Hosts, number: int) -> Crawl:
        """One spider, as one worker: two are in one folder, as on one machine."""
        folder = self.folder / mode / spider
        folder.mkdir(parents=True, exist_ok=True)
        gates = [f"{folder}/gate-{each}" for each in range(MODES[mode])]
        return {
            "label": f"{spider}#{worker}",
            "spider": spider,
            "arguments": {
                "site": site.main(number),
                "other": site.other(number),
                "folder": str(folder),
                "worker": str(worker),
            },
            "settings": {
                "GATE": [gates[worker], *gates],
                "HTTPCACHE_DIR": f"{folder}/cache",
                "FILES_STORE": f"{folder}/files",
            },
        }

    def _output(self, mode: str, worker: int) -> Path:
        return self.folder / f"{mode}-{worker}.log"

    def _gather(self, mode: str, site: Hosts) -> dict[str, Outcome]:
        clean = Cleaner(self.folder / mode)
        outcomes = {
            spider: Outcome(Counter({clean(page): n for page, n in site.fetched(number).items()}))
            for number, spider in self._crawled(mode)
        }
        for worker in range(MODES[mode]):
            reports = json.loads(self._output(mode, worker).with_suffix(".json").read_text())
            for label, report in reports.items():
                outcomes.setdefault(label.partition("#")[0], Outcome(Counter())).add(report, clean)
        for spider, outcome in outcomes.items():
            for file in sorted((self.folder / mode / spider).glob("*.jsonl")):
                outcome.items.update(
                    f"feed {clean(line)}" for line in file.read_text().splitlines()
                )
        return outcomes


@dataclass(frozen=True)
class Found:
    """One thing that differs."""

    spider: str
    mode: str
    what: str
    scrapys: str
    ours: str

    def __str__(self) -> str:
        lines = f"{self.spider} {self.mode} {self.what}:", self.scrapys, self.ours
        return "{}\n    Scrapy  {}\n    here    {}".format(*lines)


def differences(comparison: Comparison) -> Iterator[Found]:
    """What differs from Scrapy's own scheduler."""
    own = comparison.outcomes["own"]
    for mode in ("one", "two"):
        for spider, ours in comparison.outcomes[mode].items():
            scrapys = own.get(spider, Outcome(Counter()))
            for what in ("pages", "items"):
                before, now = getattr(scrapys, what), getattr(ours, what)
                if before != now:
                    yield Found(spider, mode, what, _more(before, now), _more(now, before))
            for entry in sorted(scrapys.log ^ ours.log):
                where = ("only", "") if entry in scrapys.log else ("", "only")
                yield Found(spider, mode, f"log {entry}", *where)
            for stat in sorted(scrapys.stats.keys() | ours.stats.keys()):
                before, now = scrapys.stats.get(stat), ours.stats.get(stat)
                if before != now:
                    yield Found(spider, mode, f"stat {stat}", _text(before), _text(now))


def _text(value: Any) -> str:
    return str(sorted(value) if isinstance(value, frozenset) else value)


def _more(some: Counter[str], others: Counter[str]) -> str:
    return str(sorted((some - others).items()))[:1500]
