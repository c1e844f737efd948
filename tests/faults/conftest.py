"""The rig for each test, its seed, and the record of what was measured."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rig import Rig
from tests.faults.size import SIZE

HERE = Path(__file__).parent
OUTCOME = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "smoke: a fault that `make test` produces, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the faults that are for `make faults` alone."""
    if SIZE.every:
        return
    here = [item for item in items if HERE in item.path.parents]
    left_out = [item for item in here if not item.get_closest_marker("smoke")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[OUTCOME] = report.passed
    return report


@pytest.fixture
def seed() -> int:
    """``REDISQ_FAULT_SEED``, or a new one."""
    given = os.environ.get("REDISQ_FAULT_SEED")
    return int(given) if given else random.SystemRandom().randrange(1_000_000)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> Iterator[Rig]:
    """A rig with nothing in it yet. How to repeat the run is printed, and shown if it fails."""
    name, _, _group = request.node.nodeid.partition("@")
    print(f"REDISQ_FAULTS={SIZE.name} REDISQ_FAULT_SEED={seed} pytest {name}")
    rig = Rig(tmp_path, seed)
    yield rig
    rig.close()
    results = os.environ.get("REDISQ_FAULT_RESULTS")
    if results and request.path.name != "test_rig.py":
        fault = re.match(r"test_(f\d+b?(?=_)|[a-z_]+)", request.node.name)
        assert fault is not None
        record = {
            "fault": fault[1],
            "test": request.node.name,
            "about": " ".join((request.node.obj.__doc__ or "").split()),
            "seed": seed,
            "passed": request.node.stash.get(OUTCOME, False),
            **rig.measured,
        }
        with Path(results).open("a") as file:
            file.write(json.dumps(record) + "\n")
