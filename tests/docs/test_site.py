"""The site that ``make docs`` builds: what it makes of the code is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs/_build"


def test_the_site_has_what_is_made_of_the_code() -> None:
    """Settings, keys, reasons, and links to Scrapy's documents; warnings are errors by then."""
    index = SITE / "index.html"
    sources = [*(ROOT / "docs").glob("[!_]*/*.md"), *(ROOT / "scrapy_redisq").rglob("*.py")]
    newest = max(path.stat().st_mtime for path in sources)
    if not index.exists() or index.stat().st_mtime < newest:
        pytest.skip("NO site of these documents: make docs builds it")
    for page, part in (
        ("settings", "docs.scrapy.org/en/latest/topics/settings.html#std-setting-DOWNLOAD_DELAY"),
        ("settings", 'id="redisq-lease-ttl"'),
        ("keys", "histories"),
        ("reasons", "slots_set_aside"),
    ):
        assert part in (SITE / f"reference/{page}.html").read_text("utf-8")
    pages = re.findall(r"\]\((.*?)\)", (SITE / "llms.txt").read_text("utf-8"))
    assert len(pages) > 40
    texts = [(SITE / page).read_text("utf-8") for page in pages]
    assert not any("made by make docs" in text for text in texts)
