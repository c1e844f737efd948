"""docs/operate/runbook.md has a section for each alert, and for each sentence of ``why``."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

from scrapy_redisq.control import why
from scrapy_redisq.control.observed import KINDS

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs/operate/runbook.md").read_text("utf-8")
ALERTS, SENTENCES = RUNBOOK.split("\n## Sentences of status\n")


def headings(text: str) -> list[str]:
    return re.findall(r"^### (.*)", text, re.M)


def test_alerts() -> None:
    """In the order of the rules, each of which leads to its section."""
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text("utf-8")
    assert headings(ALERTS) == re.findall(r"- alert: (\w+)", rules)
    sections = [f"docs/operate/runbook.md#{heading.lower()}" for heading in headings(ALERTS)]
    assert re.findall(r"runbook_url: (.*)", rules) == sections


def test_sentences() -> None:
    """Each reason that `explain` and its kin can give, and no others."""
    named = {why.REASON_OF.get(kind, kind) for kind in KINDS}
    for node in ast.walk(ast.parse(inspect.getsource(why))):
        pair = node.value if isinstance(node, ast.Return) else node
        parts = pair.elts if isinstance(pair, ast.Tuple) and pair is not node else []
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "_alone":
            parts = node.args
        if len(parts) == 2 and isinstance(parts[0], ast.Constant):
            named.add(parts[0].value)
    assert len(named) > 20
    assert sorted(headings(SENTENCES)) == sorted(named)


def sections(text: str) -> list[str]:
    return re.split(r"^### ", text, flags=re.M)[1:]


def parts(section: str) -> list[str]:
    return re.findall(r"^- \*\*(\w+)\*\*: \S", section, re.M)


def test_sections() -> None:
    """Each says what it means, one command or place to look, and the cure; of an alert a command
    comes first, and it is said how one sees that the cure has worked."""
    for section in sections(ALERTS):
        assert parts(section) == ["Means", "Look", "Cure", "Over"], section
        assert section.split("- **Look**: ")[1].startswith("`"), section
    for section in sections(SENTENCES):
        assert parts(section) == ["Means", "Look", "Cure"], section
