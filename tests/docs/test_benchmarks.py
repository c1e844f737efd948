"""RESULTS.md has only what the benchmarks found. .ci/run has one of them run."""

from __future__ import annotations

from benchmarks import report


def test_results_are_what_was_measured() -> None:
    """RESULTS.md is made of the results, under each the command that makes them."""
    assert report.FILE.read_text("utf-8") == "\n".join(report.document())
