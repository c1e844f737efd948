"""Scrapy's own tests of crawls, run with this scheduler and held against a table.

``python -m tests.compatibility.scrapys_tests [TESTS]`` gets the source of the installed Scrapy,
makes an environment for its tests in ``.scrapys-tests``, makes the add-on a default setting there,
runs the test modules, and compares what fails with the document. A test that fails
without being listed, or is listed and passes, is told, and the exit code is 1. What is not listed
is tried once more, for many of these tests measure times, and with Scrapy's own scheduler: what
fails with that, too, is none of ours.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from xml.etree import ElementTree

import scrapy

from lab.servers import RedisServer, any_server

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".scrapys-tests" / scrapy.__version__
SOURCE = FOLDER / "source"
PYTHON = FOLDER / "venv" / "bin" / "python"
TABLE = ROOT / "docs/explanation/scrapys-tests.md"
FAILED = ("failure", "error")
LISTED = re.compile(r"^\| `(\S+)` \| (now and then)?", re.MULTILINE)

NEEDED = (
    "attrs",
    "pexpect",
    "Pillow",
    "psutil",
    "pyftpdlib",
    "pytest<9.1",  # from there on a fixture of theirs is refused
    "pytest-rerunfailures",
    "pytest-timeout",
    "pytest-twisted",
    "pytest-xdist",
    "sybil",
    "testfixtures",
)
"""What Scrapy's tests need beside Scrapy."""

MODULES = (
    "closespider", "command_crawl", "command_runspider", "contracts", "crawl", "crawler",
    "crawler_runners", "crawler_subprocess", "downloaderslotssettings", "engine",
    "engine_close_spider", "engine_download", "engine_loop", "engine_stop_download_bytes",
    "engine_stop_download_headers", "extension_periodic_log", "extension_throttle", "feedexport",
    "feedexport_batch", "logformatter", "pipeline_crawl", "pipeline_files", "pipeline_media",
    "pipelines", "request_attribute_binding", "request_cb_kwargs", "request_left", "scheduler",
    "scheduler_base", "signals", "spider", "spider_crawl", "spider_sitemap", "spider_start",
    "spidermiddleware_httperror", "spidermiddleware_output_chain", "spidermiddleware_process_start",
    "spidermiddleware_start", "stats",
)  # fmt: skip
"""Those in which spiders are crawled, by their names without test_."""

DEFAULTS = """

if __import__("os").environ.get("SCRAPYS_TESTS_REDIS"):
    ADDONS = {"scrapy.own_frontier.OwnFrontier": 500}
"""


def prepare() -> None:
    """Get the source, change its default settings, install what its tests need."""
    if (FOLDER / "ready").exists():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    print(f"Scrapy {scrapy.__version__}: its source and an environment for its tests", flush=True)
    venv.create(FOLDER / "venv", with_pip=True)
    pip = [PYTHON, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"scrapy=={scrapy.__version__}"
        download = ["download", "--no-deps", "--no-binary", "scrapy", "--dest", folder, wanted]
        subprocess.run([*pip, *download], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (unpacked,) = (each for each in Path(folder).iterdir() if each.is_dir())
        shutil.move(unpacked, SOURCE)
    with (SOURCE / "scrapy/settings/default_settings.py").open("a") as settings:
        settings.write(DEFAULTS)
    shutil.copy(Path(__file__).with_name("own_frontier.py"), SOURCE / "scrapy")
    commands = SOURCE / "tests/utils/cmdline.py"  # 15 s for a command are few on a busy machine
    commands.write_text(commands.read_text().replace("timeout=15,", "timeout=100,"))
    subprocess.run([*pip, "install", "-e", SOURCE, "-e", f"{ROOT}[embedded]", *NEEDED], check=True)
    (FOLDER / "ready").touch()


def run(tests: list[str], redis_url: str) -> dict[str, str]:
    """Run tests, with Scrapy's own scheduler if ``redis_url`` is ""; -> how each of them ended."""
    report = FOLDER / "report.xml"
    report.unlink(missing_ok=True)
    environment = {**os.environ, "SCRAPYS_TESTS_REDIS": redis_url}
    environment.pop("PYTHONPATH", None)  # with another package that is called tests
    options = ["-q", "-n", "2", "--timeout", "120", "-p", "no:valkey", "--tb", "short"]
    command = [PYTHON, "-m", "pytest", *options, f"--junitxml={report}", *tests]
    subprocess.run(command, cwd=SOURCE, env=environment, check=False)
    ended: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        how = next((each.tag for each in case if each.tag in ("failure", "error", "skipped")), "")
        ended[_name(case.get("classname", ""), case.get("name", ""))] = how or "passed"
    return ended


def _name(path: str, test: str) -> str:
    """As pytest takes it: ``tests/test_crawl.py::TestCrawl::test_delay``."""
    parts = path.split(".")
    classes = [part for part in parts if part[0].isupper()]
    modules = "/".join(part for part in parts if not part[0].isupper())
    file = SOURCE / f"{modules}.py"
    module = f"{modules}.py" if file.exists() else f"{modules}/__init__.py"
    return "::".join([module, *classes, test])


def main(tests: list[str]) -> int:
    """-> the exit code."""
    prepare()
    everything = not tests
    places = [f"tests/test_{name}.py" for name in MODULES]
    tests = tests or [place for place in places if (SOURCE / place).exists()]
    with RedisServer(any_server(), aof=True) as server:
        return compare(tests, server.url, everything)


def compare(tests: list[str], redis_url: str, everything: bool) -> int:
    """Run the tests and say what is not as listed; -> the exit code."""
    ended = run(tests, redis_url)
    failed = {test for test, how in ended.items() if how in FAILED}
    rows = dict(LISTED.findall(TABLE.read_text()))
    listed, certain = set(rows), {test for test, seldom in rows.items() if not seldom}
    new = failed - listed
    for what, url, failing in (("", redis_url, True), (" with Scrapy's own", "", False)):
        if new:
            print(f"\nWhat is not listed, once more{what}:", flush=True)
            again = run(sorted(new), url)
            new = {test for test in new if (again.get(test) in FAILED) == failing}
    fixed = {test for test in certain - failed if everything or test in ended}
    for heading, found in (
        ("Fails with this scheduler and is not listed", new),
        ("Is listed and does not fail", fixed),
    ):
        for test in sorted(found):
            print(f"{heading}: {test}")
    passed = sum(how == "passed" for how in ended.values())
    skipped = sum(how == "skipped" for how in ended.values())
    print(
        f"Scrapy {scrapy.__version__}: of {len(ended)} tests {passed} passed, {skipped} were "
        f"skipped, {len(failed & listed)} differ for the reasons in {TABLE.relative_to(ROOT)}, "
        f"{len(new)} for others"
    )
    return 1 if new or fixed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
