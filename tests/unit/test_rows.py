"""Keys of rows: the same each time, in whichever process."""

from __future__ import annotations

from scrapy_redisq.pipelines.row_key import key_by_content


def test_nothing_of_the_process_is_in_a_key() -> None:
    """Whatever a process draws at random, such as how texts are hashed, and by that the order of a
    set: the key that each of them has always made. So an item of start() has one row."""
    item = {"tags": {"red", "green", "blue", "black"}, "of": {frozenset("abcd"): [1]}, "n": 1.5}
    assert key_by_content("books", item) == "4c56bb223469235f1501f564cd6338a0"
