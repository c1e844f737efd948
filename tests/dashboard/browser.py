"""A real browser for the dashboard's pages: Debian's chromium, driven by playwright."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, resources
from typing import Any

import msgspec
import pytest
import redis

from scrapy_redisq.frontier.names import key_prefix

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


def remember(client: redis.Redis, name: str, run: str, *, minutes: int = 20) -> None:
    """A past of the run, as exchanges keep it: samples, each 10 s, for charts to show."""
    now = int(time.time()) // 10 * 10
    samples = []
    pages = 0.0
    for n in range(6 * minutes):
        pages += 150 + 60 * math.sin(n / 9) + 25 * math.sin(n * 1.7)
        done, at = int(pages), now - 10 * (6 * minutes - n)
        counts = (
            int(done * 0.78) + 9_000, done, done // 150, 0, done * 2, done // 70, 0, 0,
            done, int(done * 0.9), done // 90,
        )  # fmt: skip
        gauges = (60 + n % 40, 44 + n % 5, 4)
        samples.append(msgspec.msgpack.encode([at, run, *counts, *gauges]))
    key = key_prefix(name, 0) + "series:10"
    client.delete(key)
    client.rpush(key, *samples)
