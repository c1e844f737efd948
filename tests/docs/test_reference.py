"""Pages of docs/reference/ name what the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from scrapy_redisq.control.frontier_status import SINK_COUNTS
from scrapy_redisq.serialization.identity import ID_KEY
from scrapy_redisq.serialization.meta import DELAY_KEY, SESSION_KEY, WANTED_KEY
from scrapy_redisq.serialization.recurrence import EVERY_KEY, SEEN_TTL_KEY
from tests.docs.test_architecture import PACKAGE, ROOT, draw, in_one_process

REFERENCE = ROOT / "docs/reference"

pytestmark = in_one_process


@cache
def texts() -> list[str]:
    """All texts of the package, f-strings with {} where a value is."""
    return [*_texts()]


def _texts() -> Iterator[str]:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(draw.parsed(path)):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(getattr(part, "value", "{}")) if isinstance(part, ast.Constant) else "{}"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_stats() -> None:
    """stats.md has each stat of this package, and no others."""
    stat = re.compile(r"redisq/[a-z_]+(?:/(?:[a-z_]+|{}))?|dupefilter/redis_errors")
    counted = {text for text in texts() if stat.fullmatch(text)}
    named = set(re.findall(r"`(\S+/\S+)`", (REFERENCE / "stats.md").read_text("utf-8")))
    named = {re.sub(r"[A-Z]+", "{}", name) for name in named}
    sink = {name for name in named if name.startswith("redisq/sink/")} - {"redisq/sink/lost"}
    scrapys = {name for name in named if name.startswith("scheduler/")}
    counted -= {"redisq/dead/deliveries", "redisq/sink/seconds", "redisq/sink/{}"}
    assert named - sink - scrapys == counted
    assert {name.rpartition("/")[2] for name in sink} == set(SINK_COUNTS)


def test_meta_keys() -> None:
    """meta.md has the keys that are this package's own."""
    named = re.findall(r"^\| `(redisq_\w+)`", (REFERENCE / "meta.md").read_text("utf-8"), re.M)
    assert named == [DELAY_KEY, EVERY_KEY, SEEN_TTL_KEY, SESSION_KEY, ID_KEY, WANTED_KEY]


def test_errors() -> None:
    """errors.md quotes messages as the code has them."""
    rows = re.findall(r"^\| `(.*?)` \|", (REFERENCE / "errors.md").read_text("utf-8"), re.M)
    said = [" ".join(text.split()) for text in texts()]
    assert len(rows) > 15
    assert [row for row in rows if not any(row in text for text in said)] == []
