"""A spider's arguments (``-a``): their digest, how people see them, and as a part of a name."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from scrapy_redisq._scrapy.crawl import spider_arguments
from scrapy_redisq.serialization.values import type_name
from scrapy_redisq.server.url import redact

MOST_CHARACTERS, MOST_WORDS = 200, 50
"""Of one argument, and of all, that are shown."""

LONGEST_IN_NAME = 40
"""Characters of all arguments; longer ones are in a name by their digest."""

DEPTH = 10

_WITH_A_TEXT = (date, time, timedelta, Decimal, Enum, PurePath, UUID, range)
"""Beside plain values: a script gives them, their texts are the same in each process."""

_WORDS_OF_SECRETS = (
    r"passw|secret|token|api_?key|credential|cookie|session|signature|authorization|bearer|jwt"
    r"|(^|[\W_])(key|auth|pass|pwd|pw|sid|sig)(?![^\W_])"
)
_SECRET = re.compile(_WORDS_OF_SECRETS, re.IGNORECASE)
_NAMES_A_SECRET = re.compile(rf"({_WORDS_OF_SECRETS})\w*[\"']?\s*[=:]", re.IGNORECASE)
"""In a value: JSON, headers or a query, one part of which is secret."""

_IN_NAMES = re.compile(r"[\w.,=+@:-]+")


@dataclass(frozen=True)
class Arguments:
    """``digest``: of all arguments; ``shown``: the words behind ``-a``, without passwords and in
    few characters; ``name``: what ``%(arguments)s`` stands for."""

    digest: str
    shown: str
    name: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Arguments:
        """Names that begin with ``_`` are the launcher's (scrapyd's ``_job``), and left out."""
        pairs = [(name, _text(given[name])) for name in sorted(given) if name[:1] != "_"]
        words = [f"{_printable(name)}={_shown(name, text)}" for name, text in pairs]
        digest = short_digest(repr(pairs))
        together = ",".join(words)
        is_clean = _IN_NAMES.fullmatch(together) and len(together) <= LONGEST_IN_NAME
        is_whole = words == [f"{name}={text}" for name, text in pairs]
        more = ["…"] if len(words) > MOST_WORDS else []
        return cls(
            digest,
            shlex.join(words[:MOST_WORDS] + more),
            (together if is_clean and is_whole else digest) if pairs else "none",
        )

    @classmethod
    def of_crawl(cls, crawler: Crawler) -> Arguments | None:
        """None where they are not known: the crawl was not begun by ``Crawler.crawl()``."""
        given = spider_arguments(crawler)
        return None if given is None else cls.of(given)

    def to_text(self) -> str:
        """As the frontier keeps and compares them."""
        return f"{self.digest} {self.shown}"


def _text(value: Any) -> str:
    """The same from the command line and from Python."""
    is_simple = value is None or isinstance(value, (str, bool, int, float, *_WITH_A_TEXT))
    return str(value) if is_simple else repr(canonical(value))


def _shown(name: str, text: str) -> str:
    if _SECRET.search(name) or _NAMES_A_SECRET.search(text):
        return "***"
    return _printable(redact(text))


def _printable(text: str) -> str:
    shown = "".join(char if char.isprintable() else "?" for char in text[: MOST_CHARACTERS + 1])
    return shown if len(text) <= MOST_CHARACTERS else shown[:MOST_CHARACTERS] + "…"


def short_digest(text: str | bytes) -> str:
    """Eight characters of which nothing can be read."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:8]


def canonical(value: Any, depth: int = DEPTH) -> Any:
    """The same in each process: of objects their class, for they may show where they lie."""
    if depth == 0:
        return "…"
    if isinstance(value, BaseSettings):
        value = dict(value)
    if isinstance(value, dict):
        pairs = ((canonical(key, depth - 1), canonical(value[key], depth - 1)) for key in value)
        return sorted(pairs, key=repr)
    if isinstance(value, (set, frozenset)):
        return sorted((canonical(item, depth - 1) for item in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [canonical(item, depth - 1) for item in value]
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        return value
    if isinstance(value, _WITH_A_TEXT):
        return str(value)
    return type_name(value if isinstance(value, type) else type(value))
