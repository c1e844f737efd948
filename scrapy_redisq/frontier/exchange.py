"""The input of an exchange, as its script takes it, and its reply."""

from __future__ import annotations

import operator
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from scrapy_redisq.errors import FrontierCorrupt
from scrapy_redisq.frontier import calls
from scrapy_redisq.frontier.operations import (
    Delivered,
    DownloadResult,
    Enqueue,
    Finish,
    Lease,
    Letter,
    Link,
    Operation,
    Reply,
    TurnGrant,
    parse_lease,
)
from scrapy_redisq.frontier.scripts import raw_string, unpack
from scrapy_redisq.frontier.seen import exact_member


class Cargo:
    """The part of an exchange's input that operations make, as ``exchange.lua`` has it.

    ``posts``: the links that go into posts, by the lease of their page.
    """

    def __init__(self, operations: Iterable[Operation], held: Mapping[str, Lease]) -> None:
        self.posts: dict[str, list[Enqueue]] = {}
        self._held = held
        self._queues: dict[tuple[str, int], int] = {}
        self._done: dict[str, list[str]] = {}
        self._data: defaultdict[str, list[Any]] = defaultdict(list)
        for operation in operations:
            self._add(operation)

    def data(self) -> dict[str, list[Any]]:
        """The fields of the input that are not empty."""
        data = dict(self._data)
        if self._done:
            data["done"] = list(self._done.items())
        if self._queues:
            data["queues"] = [(slot, str(priority)) for slot, priority in self._queues]
        return data

    def _add(self, operation: Operation) -> None:
        if isinstance(operation, Enqueue):
            self._add_request(operation)
        elif isinstance(operation, Finish):
            self._add_finish(operation)
        elif isinstance(operation, Letter):
            self._data["letters"].append(
                (
                    exact_member(operation.identity),
                    operation.slot,
                    str(operation.priority),
                    raw_string(operation.entry),
                    operation.reason,
                    operation.detail,
                    operation.error,
                    operation.status,
                )
            )
        elif isinstance(operation, Delivered):
            self._data["delivered"].append(operation.post)

    def _add_request(self, request: Enqueue) -> None:
        queue = request.slot, request.priority
        self._data["enqueue"].append(
            calls.enqueue_item(
                self._queues.setdefault(queue, len(self._queues) + 1),
                request.entry,
                request.fingerprint,
                request.delay,
                asked=request.asked,
                identity=request.identity,
            )
        )
        if request.also is not None:
            self._data["also"].append(calls.fingerprint_item(request.also))

    def _add_finish(self, finish: Finish) -> None:
        lease, data = finish.lease, self._data
        if finish.links and (unsafe := finish.unsafe()):
            self.posts[lease] = unsafe
            data["posts"].append((lease, raw_string(pack_links(unsafe))))
        if finish.record is not None:
            known_by, record = finish.record
            data["history"].append((known_by, raw_string(record)))
        held = self._held.get(lease)  # None: it will be counted as stale
        match finish.ending:
            case "done":
                self._done.setdefault(held.slot if held else "", []).append(lease)
            case "retried":
                entry = raw_string(finish.entry)
                data["retried"].append((lease, str(finish.priority), entry, finish.delay))
            case "dead":
                reason = (finish.reason, finish.detail, finish.error, finish.status)
                data["dead"].append((lease, *reason, finish.foreign))
            case "backed_off":
                data["released"].append((lease, raw_string(finish.entry)))
            case "released":
                data["released"].append((lease,))
            case unknown:
                raise ValueError(f"no end of a lease: {unknown!r}")


def read_reply(reply: list[Any], operations: Iterable[Operation]) -> Reply:
    """The ``reply`` to an exchange that carried ``operations``."""
    status = reply[0].decode()
    if status not in {"ok", "replayed"}:
        return Reply(status)
    _, packed, leases = reply
    answer = unpack(packed)
    became = answer.pop("outcome")
    for name in ("next_due", "stuck", "post_due"):
        if answer[name] < 0:
            answer[name] = None
    answer["turns"] = [TurnGrant(*turn) for turn in answer["turns"]]
    told = Reply(
        status,
        leases=[
            parse_lease(lease_id.decode(), record)
            for lease_id, record in zip(leases[::2], leases[1::2], strict=True)
        ],
        **answer,
    )
    requests = [operation for operation in operations if isinstance(operation, Enqueue)]
    for i, request in enumerate(requests):
        (told.duplicates if became[i : i + 1] == "0" else told.accepted).append(request)
    return told


def result_item(result: DownloadResult) -> tuple[str, int, int, int, int, int, int]:
    """As ``lua/shared/slots/backoff.lua`` reads it: slot, status, us since it was begun, us to
    be left alone, 1 failure or -1 success, a number for the jitter, us of latency."""

    def us(seconds: float | None) -> int:
        return -1 if seconds is None else max(0, int(seconds * 1e6))

    return (
        result.slot,
        result.status,
        us(time.monotonic() - result.begun),
        us(result.retry_after),
        0 if result.failed is None else 1 if result.failed else -1,
        random.randrange(1001),
        us(result.latency),
    )


_LINK_FIELDS = "slot", "priority", "entry", "fingerprint", "delay", "also", "identity", "asked"
_link_item = operator.attrgetter(*_LINK_FIELDS)
_encode = msgspec.msgpack.Encoder().encode
# Fingerprints are bytes or text, as the dupefilter has them.
_decode = msgspec.msgpack.Decoder(
    list[tuple[str, int, bytes, Any, int, Any, bytes | None, int]]
).decode


def pack_links(links: Iterable[Enqueue]) -> bytes:
    """The links of a post to other shards, as bytes that no script looks into."""
    return _encode(list(map(_link_item, links)))


def unpack_links(id: str, post: bytes) -> list[Enqueue]:
    """The requests in the post ``id``, for their shards to be asked once more.

    Raises `FrontierCorrupt` if something else has written it.
    """
    try:
        items = _decode(post)
    except (msgspec.MsgspecError, ValueError) as error:
        raise FrontierCorrupt(f"post {id!r} cannot be read ({error})") from None
    return [
        Enqueue(**dict(zip(_LINK_FIELDS, item, strict=True)), page=id, link=Link())
        for item in items
    ]
