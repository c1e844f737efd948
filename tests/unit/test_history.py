"""What is kept of a finished request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
from scrapy.http import Request

from scrapy_redisq.frontier.operations import Finish, Lease
from scrapy_redisq.worker.history import MOST_TRIES, record_of
from scrapy_redisq.worker.page import Page


def test_a_record_of_odd_texts_and_numbers() -> None:
    """Spiders may put into a request what msgpack does not have: it is for people, and no reason
    to stop."""
    session = cast(Any, SimpleNamespace(worker_id="w", run_id="r"))
    request = Request("http://host/", method="GE\udc00T", meta={"retry_times": 2**70})
    request._url = "http://host/\ud800"
    page = Page(request, Lease("1.1", "host", 0, 0, b"\1\x80"), session)
    kept = record_of(page, b"i" * 16, Finish("1.1", "done"))
    assert kept is not None
    record = msgspec.msgpack.decode(kept[1])
    assert (record["url"], record["method"]) == ("http://host/?", "GE?T")
    assert record["attempts"] == MOST_TRIES
