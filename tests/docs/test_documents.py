"""What documents for developers name is there, and links of all documents lead somewhere."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from typing import get_args

import pytest

from scrapy_redisq import reasons
from tests.docs.test_architecture import PACKAGE, ROOT, draw, in_one_process

LUA = PACKAGE / "frontier" / "lua"

DOCUMENTS = [
    "docs/explanation/architecture.md",
    "docs/explanation/protocol.md",
    "docs/operate/deploy.md",
    "CONTRIBUTING.md",
]
LINKING = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"]
LINKING += [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {name: (ROOT / name).read_text("utf-8") for name in DOCUMENTS}

pytestmark = in_one_process
each_document = pytest.mark.parametrize("name", DOCUMENTS)


def marked(text: str) -> set[str]:
    """What stands between back-ticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


@cache
def classes() -> dict[str, set[str]]:
    """The classes of the package, each with its methods and those of classes of the same name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(draw.parsed(path)):
            if isinstance(node, ast.ClassDef):
                found[node.name] |= {
                    part.name
                    for part in node.body
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
                }
    return found


@cache
def file_names() -> set[str]:
    return {path.name for root in (LUA, ROOT / "tests") for path in root.rglob("*.*")}


@each_document
def test_files_are_there(name: str) -> None:
    """Each path is one of the repository, of the package, or a file of a name that is there."""
    for word in marked(TEXTS[name]):
        if not re.fullmatch(r"[\w/.]+(/|\.(py|lua|md|svg|cfg))", word):
            continue
        found = [(root / word).exists() for root in (ROOT, PACKAGE, LUA)]
        assert any(found) or word in file_names(), f"{name} names {word}"


@each_document
def test_classes_and_methods_are_there(name: str) -> None:
    """Each `Class` and each `Class.method()` is one of the package."""
    for word in marked(TEXTS[name]):
        if parts := re.fullmatch(r"([A-Z]\w*[a-z]\w*)(?:\.(\w+))?(?:\(.*\))?", word):
            cls, method = parts.groups()
            assert cls in classes(), f"{name} names {word}"
            assert method is None or method in classes()[cls], f"{name} names {word}"


@each_document
def test_settings_and_commands_are_there(name: str) -> None:
    """Each `REDISQ_…` is a setting, each `make …` a target; CONTRIBUTING.md has all of these."""
    table = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    settings = set(re.findall(r"^\| `(REDISQ_\w+)` \|", table, re.M))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    words = "\n".join(marked(TEXTS[name]))
    assert set(re.findall(r"\bREDISQ_\w+", words)) <= settings
    named = set(re.findall(r"^make ([a-z-]+)", words, re.M))
    assert named <= targets
    assert name != "CONTRIBUTING.md" or named == targets - {"clean"}


@pytest.mark.parametrize("name", LINKING)
def test_links_lead_somewhere(name: str) -> None:
    """Each link leads to a file of the repository, and to a heading in it."""
    text = (ROOT / name).read_text("utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        file = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert file.is_file(), f"{name} links to {target}"
        if not heading:
            continue
        headings = re.findall(r"^#+ (.*)", file.read_text("utf-8"), re.M)
        anchors = {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}
        assert heading in anchors, f"{name} links to {target}"


def test_one_word_for_one_thing() -> None:
    """What has been renamed is called by its new name everywhere."""
    files = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua"), *(ROOT / "docs").rglob("*.md")]
    for file in [*files, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        former = re.search(r"courier|roster|membership|intake", file.read_text("utf-8"), re.I)
        assert former is None, f"{file.relative_to(ROOT)} says {former[0]}: see the glossary"


def table(document: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    section = (ROOT / document).read_text("utf-8").split(f"# {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\|(.*)\|$", section, re.M)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def test_all_keys_are_explained() -> None:
    """docs/explanation/protocol.md names the keys that the Lua documents."""
    documented = re.findall(
        r"^--   ([\w:.]+) +[a-z]+ ", (LUA / "shared" / "keys.lua").read_text("utf-8"), re.M
    )
    named = [
        key
        for _, keys in table("docs/explanation/protocol.md", "Keys")
        for key in re.findall(r"`(\S+)`", keys)
    ]
    assert sorted(named) == sorted(documented)


def test_all_scripts_are_explained() -> None:
    """docs/explanation/protocol.md names the scripts: all Lua files but what they share."""
    files = {path.relative_to(LUA).with_suffix("").as_posix() for path in LUA.rglob("*.lua")}
    scripts = {name for name in files if not name.startswith("shared/")}
    rows = table("docs/explanation/protocol.md", "Scripts")
    assert {script for row in rows for script in marked(row[0])} == scripts


def test_each_reason_has_a_meaning() -> None:
    """Python is held to the names by its types, scripts by this."""
    assert list(reasons.DEAD_LETTERS) == list(get_args(reasons.DeadReason))
    assert list(reasons.CLOSES) == list(get_args(reasons.CloseReason))
    texts = [path.read_text("utf-8") for path in LUA.rglob("*.lua")]
    named = {name for text in texts for name in re.findall(r"\breason = '(\w+)'", text)}
    assert named == {"budget", "deliveries", "foreign"}
    assert named <= set(reasons.DEAD_LETTERS)
