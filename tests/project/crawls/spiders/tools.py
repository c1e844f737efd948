"""For Scrapy's tools."""

import os

from crawls.spiders.follow import Follow


class Contracted(Follow):
    """Has a contract for ``scrapy check``."""

    name = "contracted"

    def parse(self, response):
        """A page of the site.

        @url data:text/html,<a href="/1">one</a>
        @returns items 1 1
        """
        yield {"url": response.url, "pid": os.getpid()}
