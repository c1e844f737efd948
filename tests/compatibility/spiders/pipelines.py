"""Item pipelines: of files, of images, and those that drop, wait and raise."""

import asyncio

from scrapy.exceptions import DropItem

from tests.compatibility.compared import Compared, links, redirect


class Files(Compared):
    """Files that items name: shared by items, moved, missing."""

    name = "files"
    custom_settings = {
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "MEDIA_ALLOW_REDIRECTS": True,
    }
    pages = {
        "/": links("/1", "/2"),
        "/1": "one",
        "/2": "two",
        "/a.txt": "a",
        "/b.txt": redirect("/c.txt"),
        "/c.txt": "c",
    }

    def parse(self, response):
        yield {"url": response.url, "file_urls": [f"{self.site}/{name}.txt" for name in "abd"]}
        yield from response.follow_all(css="a")

    def shown(self, item):
        return {**item, "files": sorted((file["url"], file["status"]) for file in item["files"])}


class Judge:
    """Drops some items, waits for some, raises at some."""

    async def process_item(self, item, spider=None):
        path = item["url"].rpartition("/")[2]
        if path == "1":
            raise DropItem("not this one")
        if path == "2":
            await asyncio.sleep(0.02)
        if path == "3":
            raise RuntimeError("in a pipeline")
        return {**item, "judged": True}


class Judged(Compared):
    """Items that are dropped, awaited, and that a pipeline raises at."""

    name = "judged"
    custom_settings = {"ITEM_PIPELINES": {Judge: 1}}
    pages = {"/": links("/1", "/2", "/3"), **{f"/{n}": "page" for n in (1, 2, 3)}}


class Feeds(Compared):
    """Writes a feed; the file is compared, too."""

    name = "feeds"
    pages = {"/": links("/1", "/2"), "/1": "one", "/2": "two"}
    custom_settings = {"FEEDS": {"%(folder)s/%(name)s-%(worker)s.jsonl": {"format": "jsonlines"}}}
