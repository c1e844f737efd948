"""REDISQ_PROGRESS: one line at the lower end of the terminal that a worker runs in."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from lab.launcher import fork
from lab.servers import RedisServer
from lab.site import Site, linked_pages
from tests.harness.crawl import PROJECT


def crawl_in_a_terminal(server: RedisServer, site: Site) -> str:
    """-> all that was written to it."""
    ours, theirs = os.openpty()
    written = bytearray()

    def read() -> None:
        try:
            while data := os.read(ours, 65_536):
                written.extend(data)
        except OSError:  # nobody has it open any more
            return

    reader = threading.Thread(target=read)
    reader.start()
    settings = {"REDISQ_URL": server.url, "REDISQ_PROGRESS": "True", "DOWNLOAD_DELAY": "0.05"}
    command = ["crawl", "follow", "-a", f"site={site.url}"]
    for name, value in settings.items():
        command += ["-s", f"{name}={value}"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "24"}
    process = fork("scrapy", command, PROJECT, Path(os.ttyname(theirs)), environment)
    try:
        assert process.wait(60) == 0, written
    finally:
        process.kill()
        os.close(theirs)
        reader.join()
        os.close(ours)
    return written.decode()


def test_a_worker_says_how_far_it_is(redis_server: RedisServer) -> None:
    """In its terminal, below what it logs, which is there as ever; the line goes at the end."""
    with Site(linked_pages(20)) as site:
        shown = crawl_in_a_terminal(redis_server, site)
    lines = re.findall(
        r"follow: (\d+) pages \([\d.]+/s\) · (\d+) items · \d+ downloading · all workers: "
        r"(\d+) finished, (\d+) to do",
        shown,
    )
    assert len(lines) > 1, shown
    assert int(lines[-1][0]) > int(lines[0][0])
    assert "Spider closed (finished)" in shown
    assert "Traceback" not in shown
    after = shown[shown.rindex("all workers:") :]
    assert "\x1b[2K" in after, "the line was taken away"
