"""``make docs`` builds the site: all links lead somewhere, all names that it links are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Settings, methods, commands and headings that pages name are those of the code."""
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"NO {package}: the site is not built")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(tmp_path / "site")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    for page, part in (
        ("settings", "docs.scrapy.org/en/latest/topics/settings.html#std-setting-DOWNLOAD_DELAY"),
        ("settings", 'id="redisq-lease-ttl"'),
        ("keys", "histories"),
        ("reasons", "slots_set_aside"),
    ):
        assert part in (tmp_path / f"site/reference/{page}.html").read_text("utf-8")
    pages = re.findall(r"\]\((.*?)\)", (tmp_path / "site/llms.txt").read_text("utf-8"))
    assert len(pages) > 40
    texts = [(tmp_path / "site" / page).read_text("utf-8") for page in pages]
    assert not any("made by make docs" in text for text in texts)
