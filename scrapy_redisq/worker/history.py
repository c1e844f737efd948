"""What the frontier keeps of a request that is finished (REDISQ_HISTORY)."""

from __future__ import annotations

import time

import msgspec

from scrapy_redisq.frontier.operations import Finish
from scrapy_redisq.frontier.seen import exact_member
from scrapy_redisq.serialization.entry_format import back_offs
from scrapy_redisq.serialization.meta import retry_times
from scrapy_redisq.worker.page import Page

MOST_URL = 2_000
"""Characters of a URL that are kept."""

ENDS = frozenset({"done", "dead"})

MOST_TRIES = 2**31
"""Meta may say anything of how often a request was tried."""

_encode = msgspec.msgpack.Encoder().encode


def record_of(page: Page, identity: bytes, finish: Finish) -> tuple[str, bytes] | None:
    """What is kept of ``page``, and what it is known by: its ``identity``, as an exact dupefilter
    has it. None if it is not over.

    A msgpack map: url, method, status (0: no answer), items, attempts, seconds (from the beginning
    of its download, 0: there was none), worker, run, outcome ("done", or the reason of its dead
    letter).
    """
    if finish.ending not in ENDS:
        return None
    request, began = page.request, page.download.began
    tries = retry_times(request.meta) + back_offs(page.lease.entry) + page.lease.deliveries
    record = {
        "url": _text(request.url[:MOST_URL]),
        "method": _text(request.method),
        "status": page.download.status,
        "items": page.output.items,
        "attempts": min(1 + tries, MOST_TRIES),
        "seconds": round(time.monotonic() - began, 3) if began else 0.0,
        "worker": page.session.worker_id,
        "run": page.session.run_id,
        "outcome": finish.reason or "done",
    }
    return exact_member(identity), _encode(record)


def _text(text: str) -> str:
    """Without surrogates, which a spider may have put into it, and which msgpack has not."""
    return text.encode("utf-8", "replace").decode()
