"""Several crawls in one process, each with settings of its own.

``python -m crawls.several FILE SPIDER SITE [in turn]`` reads a JSON list of settings from the file,
and writes the list of the reasons for which the spiders were closed into it.
"""

import contextlib
import json
import sys
from pathlib import Path

from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.project import get_project_settings
from twisted.internet.task import react


class PatientHandler(HTTP11DownloadHandler):
    """Closes without Scrapy's own time limit of a second.

    If the crawls beside it keep the event loop for longer than that, its connections are closed
    and its time is over in one step of the loop, and Scrapy logs an AlreadyCalledError.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._disconnect_timeout = 60


async def crawl_in_turn(process, crawlers, site):
    for crawler in crawlers:
        await process.crawl(crawler, site=site)


def main(name, spider, site, how=""):
    file = Path(name)
    project = get_project_settings()
    process = AsyncCrawlerProcess(project)
    cls = process.spider_loader.load(spider)
    crawlers = []
    for given in json.loads(file.read_text()):
        settings = project.copy()
        settings.setdict(given, priority="cmdline")
        handlers = dict.fromkeys(("http", "https"), PatientHandler)
        settings.set("DOWNLOAD_HANDLERS", handlers, priority="cmdline")
        crawlers.append(Crawler(cls, settings))
    if how:
        with contextlib.suppress(SystemExit):
            react(lambda _: deferred_from_coro(crawl_in_turn(process, crawlers, site)))
    else:
        for crawler in crawlers:
            process.crawl(crawler, site=site)
        process.start()
    reasons = [crawler.stats.get_value("finish_reason") for crawler in crawlers]
    file.write_text(json.dumps(reasons))


if __name__ == "__main__":
    main(*sys.argv[1:])
