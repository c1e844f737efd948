"""Kinds of requests whose memory is weighed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from scrapy import Request

from benchmarks.loads.members import Books
from benchmarks.loads.peer_queue import url_in_order
from scrapy_redisq.serialization.serializer import Serializer

WORDS = re.findall(
    r"\w+",
    """amber anchor apple autumn basket beacon birch bridge candle canyon cedar cherry cloud copper
    coral cotton crystal dawn delta desert ember falcon fern forest garden ginger glacier harbor
    hazel honey indigo island ivory jasmine juniper lagoon lantern lemon linen maple marble meadow
    mint morning nectar oak ocean olive orchid pearl pepper pine plum prairie quartz raven river
    saffron sage silver spruce summit thunder tulip valley velvet violet walnut willow winter""",
)


def url_of_words(number: int) -> str:
    """77 bytes, as titles in a URL: words at random."""
    chance = random.Random(number)
    text = "-".join(chance.choice(WORDS) for _ in range(8))
    return f"https://www.shop{number % 10}.example/books/{number:07d}/{text}"[:72] + ".html"


def meta_of_depth(number: int) -> dict[str, Any]:
    """What Scrapy itself leaves in meta."""
    return {"depth": 4}


def meta_of_fields(number: int) -> dict[str, Any]:
    """Six fields, as a spider hands on what a list of products said."""
    chance = random.Random(number)
    return {
        "depth": 4,
        "category": chance.choice(WORDS),
        "title": f"The {chance.choice(WORDS)} {chance.choice(WORDS)}",
        "price": round(chance.uniform(1, 100), 2),
        "page": chance.randrange(1, 60),
        "listed_by": f"/list/{chance.choice(WORDS)}?page={chance.randrange(60)}",
    }


@dataclass(frozen=True)
class Content:
    """A kind of request. All have a callback."""

    name: str
    url: Callable[[int], str]
    meta: Callable[[int], dict[str, Any]]

    def entries(self, number: int) -> Iterator[bytes]:
        """So many as entries of the frontier."""
        spider = Books()
        serializer = Serializer(spider, max_bytes=1_000_000)
        for i in range(number):
            request = Request(self.url(i), callback=spider.parse_item, meta=self.meta(i))
            yield serializer.dumps(request)

    def lines(self, number: int) -> Iterator[str]:
        """So many as lines of JSON, for the peers."""
        for i in range(number):
            yield json.dumps({"url": self.url(i), "meta": self.meta(i)}) + "\n"


CONTENTS = [
    Content("numbered URL, depth", url_in_order, meta_of_depth),
    Content("URL of words, depth", url_of_words, meta_of_depth),
    Content("URL of words, 6 fields of meta", url_of_words, meta_of_fields),
]
