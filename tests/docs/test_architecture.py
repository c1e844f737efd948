"""The house is as docs/explanation/architecture.md and the map in the package's docstring say."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import scrapy_redisq

PACKAGE = Path(scrapy_redisq.__file__).parent
ROOT = PACKAGE.parent


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


draw = _load(ROOT / "docs" / "draw.py")

ROOMS = list(draw.rooms())
in_one_process = pytest.mark.xdist_group("code")
"""Each process that parses all of the package takes a second for it."""

pytestmark = in_one_process

FLOOR_OF = {room: number for number, floor in enumerate(draw.floors()) for room in floor}


def test_the_map_is_true() -> None:
    """Each module and each package beside the map is on one of its floors, and nothing else is."""
    assert sorted(room for floor in draw.floors() for room in floor) == sorted(ROOMS)
    assert FLOOR_OF["worker/"] == FLOOR_OF["control/"]


def test_imports_lead_down() -> None:
    """A room imports from lower floors alone: so worker and control never import each other."""
    modules = {other.rstrip("/"): other for other in ROOMS}
    for room in ROOMS:
        for path in draw.files_of(room):
            for name in draw.imports(path):
                imported = modules.get(name.split(".")[1])
                assert imported, f"{path.relative_to(ROOT)} imports {name}, which is no room"
                assert imported == room or FLOOR_OF[imported] > FLOOR_OF[room], (
                    f"{path.relative_to(ROOT)} imports {name}: not from a lower floor"
                )


def test_ops_stands_beside_the_crawls() -> None:
    """ops/ knows crawls by control/ alone, and nothing but commands/ imports it."""
    arrows = draw.arrows()
    assert [room for room in ROOMS if "ops/" in arrows[room]] == ["commands/"]
    above = {room for room in arrows["ops/"] if FLOOR_OF[room] <= FLOOR_OF["control/"]}
    assert above == {"control/"}


@pytest.mark.parametrize("room", draw.NOUNS)
def test_the_map_of_a_noun_is_true(room: str) -> None:
    """The docstrings of worker/, control/ and frontier/ name each module in there, and no other."""
    folder = PACKAGE / room
    there = {path.stem for path in folder.iterdir() if path.suffix == ".py"} - {"__init__"}
    there |= {path.name for path in folder.iterdir() if path.is_dir()} - {"__pycache__"}
    named = re.findall(r"``(\w+)/?``", draw.docstring(draw.file_of(room)))
    assert sorted(named) == sorted(there)


def test_the_frontier_knows_no_scrapy() -> None:
    """frontier/ imports neither Scrapy nor Twisted, and only errors and tasks, nor do they."""
    below = {"errors", "tasks"}
    assert draw.arrows()["frontier/"] == below
    for path in [*draw.files_of("frontier/"), *map(draw.file_of, below)]:
        foreign = r"^ *(?:from|import) (?:scrapy|twisted|itemadapter)\b"
        assert not re.search(foreign, path.read_text("utf-8"), re.M), path


def test_the_picture_is_what_the_code_says() -> None:
    """docs/architecture.svg is what ``make picture`` would draw now."""
    assert draw.PICTURE.read_text("utf-8") == draw.picture(), "run: make picture"
