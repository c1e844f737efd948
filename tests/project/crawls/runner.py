"""A crawl of a script that runs the reactor by itself: SIGTERM ends that, and no crawl is told.

``python -m crawls.runner SPIDER SITE REDISQ_URL``
"""

import sys

from scrapy.crawler import CrawlerRunner
from scrapy.utils.project import get_project_settings
from scrapy.utils.reactor import install_reactor


def main(spider, site, url):
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    from twisted.internet import reactor

    settings = get_project_settings()
    settings.set("REDISQ_URL", url, priority="cmdline")
    CrawlerRunner(settings).crawl(spider, site=site)
    reactor.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
