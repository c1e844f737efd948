"""The benchmarks: each runs at its smallest size, and RESULTS.md has only what they found."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from benchmarks import COMMANDS, report
from lab.launcher import ROOT, fork

DAY = int(time.time()) // 86_400
OF_THE_DAY = [sorted(COMMANDS)[DAY % len(COMMANDS)]]
"""Each command runs once a week: all of them would be a fifth of the tests."""


@pytest.mark.long(20)
@pytest.mark.parametrize("command", OF_THE_DAY)
def test_smallest_size(command: str, tmp_path: Path) -> None:
    """A command measures something, whatever a busy machine makes of its goals."""
    output = tmp_path / "output"
    output.touch()
    ran = fork("benchmarks", [command, "--quick"], ROOT, output, dict(os.environ, COLUMNS="200"))
    try:
        code = ran.wait(300)
    finally:
        if ran.poll() is None:
            ran.kill()
    assert code == 0, output.read_text()
    assert "Traceback" not in output.read_text(), output.read_text()
    assert "reached" in output.read_text()


def test_results_are_what_was_measured() -> None:
    """RESULTS.md is made of the results, under each the command that makes them."""
    assert report.FILE.read_text("utf-8") == "\n".join(report.document(report.read()))


def test_reasons_have_no_figures() -> None:
    """What is said of goals that were missed holds whatever was measured: digits are in names."""
    names = re.compile(r"Redis \d+\.\d+")
    assert [why for why in report.WHY.values() if re.search(r"\d", names.sub("", why))] == []
