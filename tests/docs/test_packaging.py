"""What a source distribution holds, and what package indexes show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import scrapy_redisq
from tests.harness.command import run_well

ROOT = Path(__file__).parents[2]
BUILT = {"PKG-INFO", "setup.cfg"}
LUA = ("push", "run/join", "shared/keys", "shared/slots/state")
LOCAL_LINK = re.compile(r"\]\((?!https?://)|(?:src|href)=[\"'](?!https?://)")


def own_files() -> set[str]:
    """All files of the project: what git knows, or what the unpacked distribution was made of."""
    if (ROOT / "PKG-INFO").exists():
        text = (ROOT / "scrapy_redisq.egg-info" / "SOURCES.txt").read_text("utf-8")
        return {name for name in text.splitlines() if ".egg-info/" not in name}
    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    return {name for name in listed.splitlines() if (ROOT / name).is_file()}


# One process builds it, for all of these tests.
pytestmark = pytest.mark.xdist_group("sdist")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution of these files, unpacked; built by setuptools, without the network."""
    pytest.importorskip("setuptools", reason="NO setuptools: the source distribution is not tested")
    folder = tmp_path_factory.mktemp("sdist")
    for name in own_files():
        copy = folder / "source" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    run_well([sys.executable, "-W", "ignore", "-c", code], folder / "source")
    run_well(["sh", "-c", "tar xf *.tar.gz"], folder)
    (made,) = (path for path in folder.glob("scrapy*") if path.is_dir())
    return made


def test_a_source_distribution_has_all(sdist: Path) -> None:
    """Tests, documentation, example project, benchmarks, Lua: nothing of the repository is left
    out, and nothing else got in."""
    held = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    held = {name for name in held if ".egg-info/" not in name}
    assert held - BUILT == own_files() - BUILT
    assert {"tests/project/scrapy.cfg", "docs/howto/sinks.md", "example_project/scrapy.cfg"} <= held


def test_the_description_holds_where_no_files_are(sdist: Path) -> None:
    """On the page of a package index no link leads to a file of the repository."""
    _, _, description = (sdist / "PKG-INFO").read_text("utf-8").partition("\n\n")
    assert description.startswith("# scrapy-redisq\n")
    assert not LOCAL_LINK.search(description)
    assert "docs/howto/sinks.md" in description


def test_a_wheel_has_all(sdist: Path, tmp_path: Path) -> None:
    """Python, the Lua files of all folders and py.typed; and its command runs where no checkout is.
    ``make dist`` asks twine whether a package index takes it."""
    pytest.importorskip("setuptools", "77", reason="NO setuptools 77: no wheel is tested")
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    run_well([sys.executable, "-W", "ignore", "-c", code], sdist)
    (wheel,) = tmp_path.glob("*.whl")
    there = tmp_path / "there"
    with zipfile.ZipFile(wheel) as zipped:
        zipped.extractall(there)
    held = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    held = {name for name in held if name.startswith("scrapy_redisq/")}
    assert held == {name for name in own_files() if name.startswith("scrapy_redisq/")}
    assert {f"scrapy_redisq/frontier/lua/{name}.lua" for name in LUA} <= held
    code = "import scrapy_redisq, scrapy.cmdline; print(scrapy_redisq.__file__, flush=True); "
    code += "scrapy.cmdline.execute(['scrapy', 'redisq', 'status', '-h'])"
    environment = {**os.environ, "PYTHONPATH": str(there)}
    said = run_well([sys.executable, "-c", code], tmp_path, environment)
    assert said.startswith(f"{there}/scrapy_redisq/__init__.py\nusage: scrapy redisq status")


def test_one_version() -> None:
    """A citation names the version that the package has."""
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"^version: (.*)", citation, re.M) == [scrapy_redisq.__version__]
