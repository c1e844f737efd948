"""A real browser for the dashboard's pages: Debian's chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, resources
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; where there is none the test is skipped, and says what to install."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("NO chromium ON THIS MACHINE: see .ci/run")
    pytest.importorskip("playwright", reason="NO playwright: pip install axe-playwright-python")
    with import_module("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def violations(page: Any, *rules: str) -> list[str]:
    """What axe-core finds wrong with the page for keyboards and screen readers."""
    axe = resources.files("axe_playwright_python") / "axe.min.js"
    if not page.evaluate("typeof axe !== 'undefined'"):
        page.evaluate(axe.read_text("utf-8"))
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{violation['id']}: {node['html'][:200]}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]
