"""RESULTS.md has only what the benchmarks found. .ci/run has one of them run."""

from __future__ import annotations

import re

from benchmarks import report


def test_results_are_what_was_measured() -> None:
    """RESULTS.md is made of the results, under each the command that makes them."""
    assert report.FILE.read_text("utf-8") == "\n".join(report.document(report.read()))


def test_reasons_have_no_figures() -> None:
    """What is said of goals that were missed holds whatever was measured: digits are in names."""
    names = re.compile(r"Redis \d+\.\d+")
    assert [why for why in report.WHY.values() if re.search(r"\d", names.sub("", why))] == []
