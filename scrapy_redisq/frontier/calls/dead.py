"""Dead letters: ``lua/dead/``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scrapy_redisq.frontier.calls.names import meta_key
from scrapy_redisq.frontier.scripts import Call, load, raw_string


def requeue(name: str, shard: int, letters: Sequence[tuple[bytes, str, bytes | None]]) -> Call[int]:
    """-> how many of at most 100 dead letters (id, SHA-1, entry in the place of its own) became
    requests again; -1 if the shard must be opened first."""
    data = {
        "letters": [
            (raw_string(letter_id), digest, False if entry is None else raw_string(entry))
            for letter_id, digest, entry in letters
        ]
    }
    return Call.of(load("dead/requeue"), meta_key(name, shard), data, lambda reply: int(reply[0]))


def purge(name: str, shard: int, letters: Sequence[tuple[bytes, str]]) -> Call[list[int]]:
    """-> for each of at most 100 dead letters (id, SHA-1) whether it was deleted."""
    data = {"letters": [(raw_string(letter_id), digest) for letter_id, digest in letters]}
    return Call.of(load("dead/purge"), meta_key(name, shard), data, list)


NamedLetters = list[tuple[bytes, bytes | None]]
"""Ids and what is stored; None: nothing."""


@dataclass(frozen=True)
class LettersPage:
    """Dead letters, newest first, and the number of the last of them."""

    letters: NamedLetters
    number: bytes


def _letters_page(reply: list[Any]) -> LettersPage:
    number, *flat = reply
    return LettersPage(list(zip(flat[::2], flat[1::2], strict=True)), number or b"-inf")


def letters(
    name: str, shard: int, *, after: tuple[bytes, bytes] | None = None, most: int
) -> Call[LettersPage]:
    """-> at most so many dead letters, newest first; ``after``: id and number of the last one of
    the page before. None: there are no more."""
    data: dict[str, Any] = {"most": most}
    if after is not None:
        data["id"], data["number"] = map(raw_string, after)
    return Call.of(load("dead/letters"), meta_key(name, shard), data, _letters_page)


def named_letters(name: str, shard: int, ids: Sequence[bytes]) -> Call[NamedLetters]:
    """-> the first of these dead letters, one at least."""
    data = {"ids": [raw_string(letter_id) for letter_id in ids]}
    return Call.of(
        load("dead/letters"),
        meta_key(name, shard),
        data,
        lambda reply: _letters_page(reply).letters,
    )
