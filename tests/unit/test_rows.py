"""Keys of rows: the same each time, in whichever process."""

from __future__ import annotations

import os
import subprocess
import sys

ITEM = "{'tags': {'red', 'green', 'blue', 'black'}, 'of': {frozenset({'a', 'b', 'c', 'd'}): [1]}}"
PROGRAM = f"""
from scrapy_redisq.pipelines.rows import key_by_content
print(key_by_content("books", {ITEM}))
"""


def test_sets_are_in_no_order() -> None:
    """An item of start() has one row, although each process goes through a set in its own order."""
    keys = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(keys) == 1
