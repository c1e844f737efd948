"""The spider whose items go into databases: ``scrapy runspider products.py -a start_url=… -a
report=… -a items=3 -a follow=yes``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from follow import Follow, Report
from shop import product


class SinkReport(Report):
    """With what the item pipeline counted."""

    def figures(self, reason: str) -> dict[str, Any]:
        stats: Any = self.crawler.stats
        sink = {
            name: stats.get_value(f"redisq/sink/{name}", 0)
            for name in ("rows", "batches", "seconds", "retries", "refused")
        }
        return {**super().figures(reason), "sink": sink}


class Products(Follow):
    """``items``: how many each page has; ``follow``: not empty to go on to the pages linked."""

    name = "products"
    items = "3"
    follow = ""
    custom_settings = {**Follow.custom_settings, "EXTENSIONS": {SinkReport: 0}}  # noqa: RUF012

    def parse(self, response: Any) -> Iterator[Any]:
        for number in range(int(self.items)):
            yield product(response.url, number)
        if self.follow:
            for link in response.css("a::attr(href)").getall():
                yield response.follow(link)
