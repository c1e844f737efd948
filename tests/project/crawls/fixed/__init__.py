"""The spider `ordered` after a deploy that brought a callback back."""

from crawls.spiders.follow import Ordered as Old


class Ordered(Old):
    def parse_new(self, response):
        yield {"url": response.url, "new": True}
