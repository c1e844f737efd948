"""A dead letter in JSON's types, and its request on one line."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from scrapy_redisq.control.dead_letters import DeadLetter
from scrapy_redisq.errors import Undecodable
from scrapy_redisq.serialization.fields import loads_fields


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def summary(letter: DeadLetter) -> str:
    """The request on one line: what it fetches, and by which callback if it names one."""
    try:
        fields = loads_fields(letter.entry)
    except Undecodable as error:
        return f"({error})"
    callback = f" → {fields['callback']}" if "callback" in fields else ""
    method = "" if fields["method"] == "GET" else f"{fields['method']} "
    return f"{method}{fields['url']}{callback}"


def as_json(letter: DeadLetter) -> dict[str, Any]:
    """All of a dead letter in JSON's types. ``request`` is None if it cannot be decoded."""
    request = error = None
    try:
        request = _plain(loads_fields(letter.entry))
    except Undecodable as undecodable:
        error = str(undecodable)
    return {
        "id": letter.id,
        "reason": letter.reason,
        "error": letter.error or None,
        "status": letter.status or None,
        "detail": letter.detail,
        "claimed": utc(letter.claimed_at) if letter.claimed_at else None,
        "at": utc(letter.at),
        "slot": letter.slot,
        "priority": letter.priority,
        "worker": letter.worker,
        "deliveries": letter.deliveries,
        "request": request,
        "undecodable": error,
    }


def exported(name: str, letter: DeadLetter) -> dict[str, Any]:
    """All that is known of a letter; ``entry`` is what is stored of its request. A letter is the
    same as long as it has this ``digest``."""
    entry = base64.b64encode(letter.entry).decode()
    return {"frontier": name, **as_json(letter), "entry": entry, "digest": letter.digest}


def _plain(value: Any) -> Any:
    """``value`` in JSON's types: bytes as text, other sequences as lists, the rest as text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        # Python writes no number of more than 4,300 digits, and few programs read such.
        return value if value.bit_length() <= 64 else hex(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {_key(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (set, frozenset)):
        # In an order that is the same in each process.
        return sorted((_plain(item) for item in value), key=json.dumps)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


def _key(name: Any) -> str:
    return str(_plain(name))
