"""Scrapy's other spider classes."""

import gzip

from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider

from lab.site import Answer
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


def _sitemap(root, *locations):
    child = "url" if root == "urlset" else "sitemap"
    entries = "".join(f"<{child}><loc>{url}</loc></{child}>" for url in locations)
    namespace = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
    return f'<?xml version="1.0"?><{root} {namespace}>{entries}</{root}>'


def _with_host(make):
    def page(hit, visit):
        return make(f"http://{hit.host}")

    return page


class Sitemaps(Compared, SitemapSpider):
    """A robots.txt that names an index of sitemaps, one of them compressed."""

    name = "sitemaps"
    first = ""
    pages = {
        "/robots.txt": _with_host(
            lambda site: Answer(f"Sitemap: {site}/index.xml\n", content_type="text/plain")
        ),
        "/index.xml": _with_host(
            lambda site: Answer(
                _sitemap("sitemapindex", f"{site}/a.xml", f"{site}/b.xml.gz"),
                content_type="text/xml",
            )
        ),
        "/a.xml": _with_host(
            lambda site: Answer(
                _sitemap("urlset", f"{site}/shop/1", f"{site}/other/1", f"{site}/shop/1"),
                content_type="text/xml",
            )
        ),
        "/b.xml.gz": _with_host(
            lambda site: Answer(
                gzip.compress(_sitemap("urlset", f"{site}/shop/2", f"{site}/x").encode()),
                content_type="application/gzip",
            )
        ),
        **{f"/{path}": path for path in ("shop/1", "shop/2", "other/1", "x")},
    }
    sitemap_rules = (("/shop/", "parse_shop"), ("/other/", "parse"))

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.sitemap_urls = [f"{self.site}/robots.txt"]

    def parse_shop(self, response):
        yield {"shop": response.url}
