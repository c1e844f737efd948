"""Keys of rows: the same each time, in whichever process."""

from __future__ import annotations

import itertools
from typing import Any

from scrapy_redisq.pipelines.row_key import key_by_content

WORDS = [f"word {number}" for number in range(40)]


def colliding() -> tuple[str, str]:
    """Two words whose set is gone through in the order in which they were put in: which of all
    words they are differs from process to process."""
    return next(
        (one, two)
        for one, two in itertools.combinations(WORDS, 2)
        if list({one, two}) != list({two, one})
    )


def test_sets_are_in_no_order() -> None:
    """An item of start() has one row, although each process goes through a set in its own order."""
    one, two = colliding()

    def item(first: str, second: str) -> dict[str, Any]:
        return {"tags": {first, second}, "of": {frozenset({first, second}): [1]}}

    assert list(item(one, two)["tags"]) != list(item(two, one)["tags"])
    assert key_by_content("books", item(one, two)) == key_by_content("books", item(two, one))


def test_nothing_of_the_process_is_in_a_key() -> None:
    """Whatever a process draws at random, such as how texts are hashed: the key that each of them
    has always made."""
    item = {"tags": {"red", "green", "blue", "black"}, "of": {frozenset("abcd"): [1]}, "n": 1.5}
    assert key_by_content("books", item) == "4c56bb223469235f1501f564cd6338a0"
