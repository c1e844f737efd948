"""Requests as scripts take them in, and ``lua/push.lua``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load, raw_string, unpack
from scrapy_redisq.frontier.seen import exact_member

STARTS, RECENT = 1, 2
"""How a request is asked about that the dupefilter is not asked about: its identity is recorded
among those of all start requests of the run, or of what came lately."""

FingerprintItem = msgspec.Raw | str | bool
"""A fingerprint as scripts take it; False stands for none."""

EnqueueItem = (
    tuple[int, msgspec.Raw, FingerprintItem, int]
    | tuple[int, msgspec.Raw, FingerprintItem, int, int, str]
)
"""A request as ``lua/shared/enqueue.lua`` takes it: the number of its queue, entry, fingerprint,
delay in ms; what is asked, and its identity."""


def enqueue_item(
    queue: int,
    entry: bytes,
    fingerprint: bytes | str | None,
    delay: int = 0,
    *,
    asked: int = 0,
    identity: bytes | None = None,
) -> EnqueueItem:
    """One request as the scripts take it; ``delay`` in ms.

    ``asked``: which of the exact sets is asked about its ``identity``, 0 for none.
    """
    item = queue, raw_string(entry), fingerprint_item(fingerprint), delay
    if not asked or identity is None:
        return item
    return *item, asked, exact_member(identity)


def fingerprint_item(fingerprint: bytes | str | None) -> FingerprintItem:
    """A fingerprint as scripts take it."""
    if isinstance(fingerprint, bytes):
        return raw_string(fingerprint)
    return fingerprint or False


def push(
    name: str,
    shard: int,
    run: str,
    backend: str,
    queues: Sequence[tuple[str, str]],
    enqueue: Sequence[EnqueueItem],
    seen: Sequence[Any],
) -> Call[str]:
    """-> one character per request: "1" new, "0" duplicate; "" if another run has begun, "sealed"
    if the shard must be opened first."""

    def decode(reply: Any) -> str:
        answer = unpack(reply)
        if answer["status"] == "sealed":
            return "sealed"
        return str(answer.get("outcome", ""))

    data = {"run": run, "queues": queues, "enqueue": enqueue, "seen": seen}
    return Call.of(load("push", backend), meta_key(name, shard), data, decode)
