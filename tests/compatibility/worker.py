"""One process of the comparison: several spiders at once, and what became of each.

``python -m tests.compatibility.worker JOB`` reads the file JOB (see `Job`) and writes what each
spider did to the file ``report``: its items, stats, and what was logged from WARNING on.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypedDict

from itemadapter import ItemAdapter
from scrapy import signals
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.settings import Settings
from scrapy.spiderloader import SpiderLoader

crawling: ContextVar[str] = ContextVar("crawling", default="")
"""The crawl that this context belongs to: timers, sockets and tasks inherit it."""


class Crawl(TypedDict):
    label: str
    spider: str
    arguments: dict[str, str]
    settings: dict[str, Any]


class Job(TypedDict):
    crawls: list[Crawl]
    settings: dict[str, Any]
    report: str


class Report(TypedDict):
    items: list[Any]
    stats: dict[str, Any]
    log: list[list[str]]


def shown(value: Any) -> Any:
    """``value`` as JSON may have it."""
    if isinstance(value, dict):
        return {str(name): shown(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    if isinstance(value, str | int | float | bool | None):
        return value
    return repr(value)


class Notes(logging.Handler):
    """Keeps what is logged, by the crawl that it belongs to."""

    def __init__(self, reports: dict[str, Report]) -> None:
        super().__init__(logging.WARNING)
        self.reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        spider = getattr(record, "spider", None)
        label = getattr(spider, "label", "") or crawling.get()
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        entry = [record.levelname, record.name, record.getMessage().strip().split("\n")[0], error]
        self.reports.setdefault(label, _report())["log"].append(entry)


def _report() -> Report:
    return {"items": [], "stats": {}, "log": []}


def crawler_of(crawl: Crawl, common: Settings, report: Report) -> Crawler:
    spider = SpiderLoader.from_settings(common).load(crawl["spider"])
    crawler = Crawler(spider, common, init_reactor=False)  # with a copy of them
    for name, value in crawl["settings"].items():
        crawler.settings.set(name, value, priority="project")
    crawler.settings["ADDONS"].update(getattr(spider, "addons", {}))

    def scraped(item: Any, spider: Any) -> None:
        one = ItemAdapter(item).asdict()
        show = getattr(spider, "shown", None)
        report["items"].append(shown(show(one) if show else one))

    crawler.signals.connect(scraped, signals.item_scraped, weak=False)
    return crawler


def main(job: Job) -> None:
    settings = Settings()
    settings.setdict(job["settings"], priority="project")
    reports = {crawl["label"]: _report() for crawl in job["crawls"]}
    process = AsyncCrawlerProcess(settings)
    logging.captureWarnings(True)
    warnings.simplefilter("always")
    logging.getLogger().addHandler(Notes(reports))
    made = [(one, crawler_of(one, settings, reports[one["label"]])) for one in job["crawls"]]
    for one, crawler in made:
        crawling.set(one["label"])
        process.crawl(crawler, label=one["label"], **one["arguments"])
    crawling.set("")
    process.start()
    for one, crawler in made:
        reports[one["label"]]["stats"] = shown(crawler.stats.get_stats() if crawler.stats else {})
    Path(job["report"]).write_text(json.dumps(reports))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
