"""Several crawls in one process, each with settings of its own.

``python -m crawls.several SPIDER SITE`` reads a JSON list of settings from stdin, and writes the
list of the reasons for which the spiders were closed to stdout.
"""

import json
import sys

from scrapy.crawler import Crawler
from scrapy.utils.project import get_project_settings

try:
    from scrapy.crawler import AsyncCrawlerProcess as Process
except ImportError:  # before Scrapy 2.14
    from scrapy.crawler import CrawlerProcess as Process
    from scrapy.utils.reactor import install_reactor

    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")


def main(spider, site):
    project = get_project_settings()
    process = Process(project)
    cls = process.spider_loader.load(spider)
    crawlers = []
    for given in json.load(sys.stdin):
        settings = project.copy()
        settings.setdict(given, priority="cmdline")
        crawlers.append(Crawler(cls, settings))
        process.crawl(crawlers[-1], site=site)
    process.start()
    json.dump([crawler.stats.get_value("finish_reason") for crawler in crawlers], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
