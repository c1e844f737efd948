"""What a post holds: the links of a page to other shards, as bytes that no script looks into."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from scrapy_redisq.errors import FrontierCorrupt
from scrapy_redisq.frontier.operations import Enqueue, Link

# Fingerprints are bytes or text, as the dupefilter has them.
_Item = tuple[str, int, bytes, Any, int, Any, bytes | None, int]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Item]).decode


def pack_links(links: Iterable[Enqueue]) -> bytes:
    """What `unpack_links` makes requests of again, for their shards to be asked once more."""
    return _encode(
        [
            (
                link.slot,
                link.priority,
                link.entry,
                link.fingerprint,
                link.delay,
                link.also,
                link.identity,
                link.asked,
            )
            for link in links
        ]
    )


def unpack_links(id: str, post: bytes) -> list[Enqueue]:
    """The requests in the post ``id``. Raises `FrontierCorrupt` if another hand has written it."""
    try:
        return [
            Enqueue(
                slot,
                priority,
                entry,
                fingerprint,
                delay,
                also=also,
                identity=identity,
                asked=asked,
                page=id,
                link=Link(),
            )
            for slot, priority, entry, fingerprint, delay, also, identity, asked in _decode(post)
        ]
    except (msgspec.MsgspecError, ValueError) as error:
        raise FrontierCorrupt(f"post {id!r} cannot be read ({error})") from None
