"""Lines of a feed, which any client of Redis fills: taken aside, and deleted when they are pushed.

A worker takes some lines of a feed aside (``lua/feed.lua``), pushes each with an identity, and says
then that they are done. Another worker takes the same lines up again after a while, unless they are
done. It gives each the same identity, so that the frontier takes none twice. So a line is in the
feed, aside, or in the frontier, whoever dies.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from scrapy_redisq.frontier.scripts import Call, load, raw_string

STREAM = "stream"

TYPES = ("list", "set", "zset", STREAM)
"""What Redis calls the types of a feed."""

MOST_LINES = 1_000
"""Lines that are taken at a time."""


class Taken(NamedTuple):
    """The reply of a feed: its ``type`` ("none": it is empty), how many batches or entries are
    ``aside``, for whichever worker, and lines with their identities. ``done`` is to be handed back
    when all of them are pushed."""

    type: str
    aside: int
    lines: list[tuple[bytes, bytes]]
    done: Any


def take_lines(feed: str, name: str, *, most: int, ttl: float, done: Any = None) -> Call[Taken]:
    """Take at most ``most`` lines of the ``feed`` aside for the frontier called ``name``; nobody
    else is given them for ``ttl`` seconds. ``done`` of earlier ones deletes those."""
    data = {
        "feed": raw_string(feed.encode()),
        "name": name,
        "id": secrets.token_hex(16),
        "most": most,
        "ttl": int(ttl * 1e6),
        "done": raw_string(done) if isinstance(done, bytes) else done or False,
    }
    return Call.of(load("feed"), _meta_key(feed, name), data, partial(_decode, feed))


def count_lines(feed: str, name: str) -> Call[int | None]:
    """-> how many lines wait in the ``feed``, for the frontier called ``name``; None: that is not
    known. Of a stream whose server does not say it is 1 if there are some. Changes nothing."""
    data = {"feed": raw_string(feed.encode()), "name": name, "count": True}
    return Call.of(load("feed"), _meta_key(feed, name), data, lambda n: None if n < 0 else int(n))


def _meta_key(feed: str, name: str) -> str:
    # A hash tag made of the whole key hashes as the key does.
    place = feed if "{" in feed else f"{{{feed}}}"
    return f"{place}:redisq:{name}:meta"


def _decode(feed: str, reply: list[Any]) -> Taken:
    type, aside = reply[0].decode(), int(reply[1])
    if type == STREAM:
        done: Any = [id.decode() for id, _ in reply[2:]]
        placed = [(f"{feed} {id.decode()}", _line(fields)) for id, fields in reply[2:]]
    else:
        done = reply[2]
        placed = [(f"{done[:32]!r} {n}", line) for n, line in enumerate(_lines(done[32:]))]
    return Taken(type, aside, [(_identity(place, line), line) for place, line in placed], done)


def _lines(batch: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(batch):
        colon = batch.index(b":", at)
        at = colon + 1 + int(batch[at:colon])
        yield batch[colon + 1 : at]


def _line(fields: list[bytes]) -> bytes:
    """The line of a stream's entry: the value of its only field, else all fields as JSON."""
    if len(fields) == 2:
        return fields[1]
    texts = [field.decode(errors="surrogateescape") for field in fields]
    line = json.dumps(dict(zip(texts[::2], texts[1::2], strict=True)), ensure_ascii=False)
    return line.encode(errors="surrogateescape")


def _identity(place: str, line: bytes) -> bytes:
    # Of a stream that was deleted the ids may come again.
    return blake2b(f"line {place} ".encode() + line, digest_size=16).digest()
