"""The pages that Scrapy works on, and those that wait for their sink."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from scrapy.http import Request

from scrapy_redisq.frontier.operations import Lease
from scrapy_redisq.worker.in_progress import InProgress
from scrapy_redisq.worker.page import Page


def test_pages_that_wait_for_their_sink_are_not_looked_at() -> None:
    """There are thousands of them with large batches, and each download asks about the others."""
    pages = InProgress(lambda request: b"")
    request = Request("http://a.example/")
    session = cast(Any, SimpleNamespace(suspects=set()))
    page = Page(request, Lease("1.1", "a.example", 0, 0, b"\1"), session)
    pages.begin(page)
    pages.wait_for_item(request)
    assert pages.end(set(), closing=False) == []
    page.lease = cast(Any, None)  # whoever looks at it fails
    assert not pages.to_begin("a.example") and not pages.slots() and not pages.any_of({request})
    assert pages.has(request) and (len(pages), pages.unwritten) == (0, 1)
    pages.item_ended(request)
    assert pages.end(set(), closing=False) == [page]
    assert not pages.has(request) and (len(pages), pages.unwritten) == (0, 0)
