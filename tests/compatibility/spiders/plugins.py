"""Well-known plugins. Each is left out where it is not installed."""

from importlib.util import find_spec

from tests.compatibility.compared import Compared, links

if find_spec("spidermon"):
    from spidermon import Monitor, MonitorSuite, monitors

    @monitors.name("Count")
    class CountMonitor(Monitor):
        def test_items(self):
            self.assertEqual(self.data.stats["item_scraped_count"], 3)

        def test_pages(self):
            self.assertEqual(self.data.stats["downloader/response_count"], 3)

    class Suite(MonitorSuite):
        monitors = (CountMonitor,)

    class Monitored(Compared):
        """spidermon: monitors at the end, and items that are validated by a JSON schema."""

        name = "monitored"
        custom_settings = {
            "SPIDERMON_ENABLED": True,
            "EXTENSIONS": {"spidermon.contrib.scrapy.extensions.Spidermon": 500},
            "ITEM_PIPELINES": {"spidermon.contrib.scrapy.pipelines.ItemValidationPipeline": 800},
            "SPIDERMON_SPIDER_CLOSE_MONITORS": (Suite,),
            "SPIDERMON_VALIDATION_SCHEMAS": [
                {"type": "object", "required": ["url", "no_such_field"]}
            ],
        }
        pages = {"/": links("/1", "/2"), "/1": "one", "/2": "two"}


if find_spec("scrapy_poet"):
    from scrapy_poet import DummyResponse
    from web_poet import WebPage, field

    class ListPage(WebPage):
        @property
        def hrefs(self):
            return self.css("a::attr(href)").getall()

    class DetailPage(WebPage):
        @field
        def url(self):
            return str(self.response.url)

        @field
        def text(self):
            return self.response.text

    class Injected(Compared):
        """scrapy-poet: page objects as arguments of callbacks, which may need no response."""

        name = "injected"
        addons = {"scrapy_poet.Addon": 300}
        pages = {"/": links("/1", "/2", "/1"), "/1": "one", "/2": "two"}

        def parse(self, response, page: ListPage):
            for href in page.hrefs:
                yield response.follow(href, self.parse_detail)
                yield response.follow(href + "?not-fetched", self.parse_nothing)

        async def parse_detail(self, response: DummyResponse, page: DetailPage):
            yield await page.to_item()

        def parse_nothing(self, response: DummyResponse):
            yield {"not fetched": response.url}
