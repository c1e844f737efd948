"""The list of mutants is about the code as it is."""

from __future__ import annotations

from tests.mutants.__main__ import ROOT
from tests.mutants.faults import MUTANTS


def test_each_can_be_put_in() -> None:
    """Its line is there once, and so are its tests."""
    for mutant in MUTANTS:
        mutant.apply((ROOT / "scrapy_redisq" / mutant.path).read_text())
        assert all((ROOT / path.split("::")[0]).exists() for path in mutant.tests.split()), (
            mutant.tests
        )
