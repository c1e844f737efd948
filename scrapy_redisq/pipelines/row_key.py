"""The row of an item: its values, and a key that stays the same each time the item comes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from itemadapter import ItemAdapter
from scrapy.http import Request
from scrapy.utils.python import global_object_name


class Row(dict[str, Any]):
    """An item's fields as plain values, as ``ItemAdapter.asdict()`` gives them.

    ``item`` is the item itself. ``key`` are 32 hexadecimal digits. They are made of the spider's
    name, of the request's fingerprint or identity (`scrapy_redisq.serialization.identity`), of its
    callback and of the item's position in the page: the same when the page is fetched again. An
    item of ``start()`` has no page, and a key made of its content.
    """

    __slots__ = ("item", "key")

    def __init__(self, item: Any, key: str, values: dict[str, Any] | None = None) -> None:
        super().__init__(ItemAdapter(item).asdict() if values is None else values)
        self.item = item
        self.key = key


def key_by_place(spider: str, identity: bytes, request: Request, number: int) -> str:
    """The key of the ``number``-th item of a page whose request is known by ``identity``."""
    # Two callbacks may read the same page.
    callback = getattr(request.callback, "__name__", "parse")
    return _digest(spider, identity.hex(), callback, str(number))


def key_by_content(spider: str, item: Any) -> str:
    """The key of an item that comes from no page."""
    content = json.dumps(_in_order(ItemAdapter(item).asdict()), default=str)
    return _digest(spider, global_object_name(type(item)), content)


def key_by_fields(spider: str, item: Any, values: list[Any]) -> str:
    """The key of all items of a class that have these values in the fields that tell them apart."""
    content = json.dumps(_in_order(values), default=str)
    return _digest(spider, global_object_name(type(item)), content)


def _in_order(value: Any) -> Any:
    """Mappings as lists of key, its type and value in an order of their own, which JSON gives to
    text keys only; sets likewise, which each process has in another order."""
    if isinstance(value, dict):
        pairs = (
            (str(_in_order(key)), type(key).__name__, _in_order(one)) for key, one in value.items()
        )
        return sorted(pairs, key=lambda pair: pair[:2])
    if isinstance(value, (set, frozenset)):
        return sorted(map(_in_order, value), key=lambda one: json.dumps(one, default=str))
    if isinstance(value, (list, tuple)):
        return [_in_order(one) for one in value]
    return value


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
