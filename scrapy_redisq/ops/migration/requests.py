"""Requests of what scrapy-redis has pickled: ``Request.to_dict()`` with names of callbacks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from scrapy.http import Request

from scrapy_redisq.control.seeds import NamedRequest
from scrapy_redisq.errors import Unserializable, reason
from scrapy_redisq.serialization.entry_format import SCRAPY_CLASSES, RequestClass
from scrapy_redisq.serialization.request_fields import is_callback_name
from scrapy_redisq.serialization.values import shown

RequestClasses = Mapping[str, type[Request]]


def request_classes(listed: Sequence[type | str]) -> RequestClasses:
    """The classes of requests that may be stored, by the names that pickles have. ``listed``:
    REDISQ_REQUEST_CLASSES. Raises `SettingError`."""
    kinds = [kind.cls for kind in (*SCRAPY_CLASSES, *map(RequestClass.listed, listed))]
    return {f"{cls.__module__}.{cls.__name__}": cls for cls in kinds}


def named_request(
    fields: Mapping[str, Any], entry: bytes, score: float | None, classes: RequestClasses
) -> NamedRequest:
    """The request of a pickled dict. ``entry``: the pickle, by which an unfiltered request is
    known. ``score``: in a sorted set, whose lowest is the first. Raises `Unserializable`."""
    path = fields.get("_class", f"{Request.__module__}.{Request.__name__}")
    cls = classes.get(path) if isinstance(path, str) else None
    if cls is None:
        raise Unserializable(f"class {shown(path)} is not listed in REDISQ_REQUEST_CLASSES")
    callback, errback = fields.get("callback"), fields.get("errback")
    for name in (callback, errback):
        if name is not None and not is_callback_name(name):
            raise Unserializable(f"{shown(name)} is no callback of a spider")
    given = {name: fields[name] for name in fields.keys() & cls.attributes}
    given.update(callback=None, errback=None)
    if score is not None and score.is_integer():
        given["priority"] = -int(score)
    try:
        request = cls(**given)
    except Exception as error:  # constructors check their arguments, each in its own way
        raise Unserializable(f"not a request: {reason(error)}") from error
    return NamedRequest(request, callback, errback, hashlib.blake2b(entry, digest_size=16).digest())
