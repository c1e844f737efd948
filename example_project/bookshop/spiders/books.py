"""The spider: nothing in it knows that other processes crawl the same site at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import scrapy

from bookshop.items import Book, Page


class BooksSpider(scrapy.Spider):
    """Reads the whole shop: ``scrapy crawl books -a site=http://127.0.0.1:8000``."""

    name = "books"

    def __init__(self, site: str = "http://127.0.0.1:8000", **options: Any) -> None:
        super().__init__(**options)
        self.start_urls = [site.rstrip("/") + "/"]
        self.allowed_domains = [urlsplit(site).hostname or ""]

    def parse(self, response: Any, **_: Any) -> Iterator[Any]:
        """The home page."""
        yield self.page(response, "home")
        yield from self.follow_links(response)

    def parse_category(self, response: Any) -> Iterator[Any]:
        """One page of the listing of a category."""
        yield self.page(response, "category")
        yield from self.follow_links(response)

    def parse_author(self, response: Any, author: str) -> Iterator[Any]:
        """An author's page, found by the name in the link that led there."""
        yield self.page(response, "author", title=author)
        yield from self.follow_links(response)

    def parse_book(self, response: Any) -> Iterator[Any]:
        """A book: the page itself, the book on it, and the links to others."""
        yield self.page(response, "book")
        yield Book(
            url=response.url,
            title=response.css("h1::text").get(""),
            author=response.css("p a.author::text").get(""),
            category=response.css(".breadcrumb a.category::text").get(""),
            price=int(response.css(".price::text").re_first(r"[\d.]+", "0").replace(".", "")),
            rating=int(response.css(".rating::attr(data-stars)").get("0")),
            in_stock=response.css(".stock::text").get() == "in stock",
        )
        yield from self.follow_links(response)

    def page(self, response: Any, kind: str, title: str = "") -> Page:
        """The row of a page; ``found_on`` is the page whose link led here."""
        return Page(
            url=response.url,
            kind=kind,
            title=title or response.css("h1::text").get(""),
            found_on=response.meta.get("found_on", ""),
            worker=os.getpid(),
        )

    def follow_links(self, response: Any) -> Iterator[scrapy.Request]:
        """Requests for all links of a page; the scheduler drops those already seen."""
        meta = {"found_on": response.url}
        yield from response.follow_all(css="a.home", callback=self.parse, meta=meta)
        yield from response.follow_all(css="a.category", callback=self.parse_category, meta=meta)
        yield from response.follow_all(css="a.book, a.review", callback=self.parse_book, meta=meta)
        for link in response.css("a.author"):
            author = link.css("::text").get("")
            yield response.follow(
                link, callback=self.parse_author, cb_kwargs={"author": author}, meta=meta
            )
