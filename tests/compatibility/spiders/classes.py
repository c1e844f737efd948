"""Scrapy's other spider classes."""

from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from tests.compatibility.compared import Compared
from tests.compatibility.pages import links


class Rules(Compared, CrawlSpider):
    """Rules with callbacks by name, arguments, errbacks, and requests that they change."""

    name = "rules"
    pages = {
        "/": links("/list/1", "/list/2", "/item/1", "/item/gone", "/never", "mailto:x@y"),
        "/list/1": links("/list/2", "/item/1", "/item/2?b=2&a=1", "/item/2?a=1&b=2"),
        "/list/2": links("/list/1", "/item/3#part"),
        **{f"/item/{n}": f"<title>{n}</title>" for n in range(5)},
        "/item/2?b=2&a=1": "two",
        "/item/2?a=1&b=2": "two",
    }
    rules = (
        Rule(LinkExtractor(allow=r"/list/"), follow=True, process_links="last_first"),
        Rule(
            LinkExtractor(allow=r"/item/", canonicalize=True),
            callback="parse_item",
            errback="failed",
            cb_kwargs={"given": 1},
            process_request="mark",
        ),
    )
    parse = CrawlSpider.parse

    def last_first(self, found):
        return found[::-1]

    def mark(self, request, response):
        return request.replace(meta={**request.meta, "found_on": response.url})

    def parse_item(self, response, given):
        yield {"url": response.url, "given": given, "rule": response.meta["rule"]}

    def failed(self, failure):
        yield {"failed": failure.value.response.url}
