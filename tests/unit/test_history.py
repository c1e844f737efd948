"""What is kept of a finished request, and told of one that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
from scrapy.http import Request
from twisted.python.failure import Failure

from scrapy_redisq.frontier.operations import Finish, Lease
from scrapy_redisq.worker.page import MOST_TRIES, Page, describe, record_of


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


class Nameless(Exception):
    def __str__(self) -> str:
        raise ValueError("nobody has set it")


def test_an_exception_that_cannot_say_what_it_is() -> None:
    """Its dead letter has its type."""
    assert f"{Nameless.__module__}.Nameless: <exception" in describe(Failure(Nameless()))  # type: ignore[no-untyped-call]
