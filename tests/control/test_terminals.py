"""The command line in odd places: no UTF-8, 60 columns, no stdin, broken spiders, no Redis yet."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from lab.servers import RedisServer, any_server
from scrapy_redisq.commands import display
from scrapy_redisq.commands.slot_table import SlotSummary, slot_table
from scrapy_redisq.control import Frontier, SlotStatus, told_letters
from scrapy_redisq.control import dead_letters as letters
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.control.told_letters import as_json
from scrapy_redisq.frontier.limits import SlotLimit
from scrapy_redisq.frontier.operations import Finish
from tests.control.test_frontier import Worker, some_urls
from tests.harness.command import Redisq, at


@pytest.fixture
def frontier(redis_server: RedisServer) -> Iterator[Frontier]:
    with Frontier.from_url(redis_server.url, "books") as frontier:
        yield frontier


SPIDERS = """
import scrapy

class Books(scrapy.Spider):
    name = "books"
    custom_settings = {"REDISQ_ORDER": "lifo"}

class Broken(scrapy.Spider):
    name = "broken"
    %s
"""
BROKEN = [
    'custom_settings = "nonsense"',
    "custom_settings = 5",
    'custom_settings = ["REDISQ_ORDER"]',
    "update_settings = classmethod(lambda cls, settings: 1 / 0)",
    "update_settings = classmethod(lambda cls, settings: exit(3))",
    'custom_settings = {"ADDONS": {"no.such.Addon": 1}}',
]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", ["books", "broken"])
def test_a_spider_with_broken_settings(
    redisq: Redisq, frontier: Frontier, tmp_path: Path, broken: str, name: str
) -> None:
    """It is named in a line, and keeps nobody from the frontiers of the others, or its own."""
    (tmp_path / "crawl_spiders.py").write_text(SPIDERS % broken)
    sys.path.insert(0, str(tmp_path))
    try:
        ran = redisq("push", name, "https://a.example/", SPIDER_MODULES=["crawl_spiders"])
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("crawl_spiders", None)
    if "ADDONS" in broken:  # what it is can be told only where it is the one that is meant
        assert (ran.code, ran.err.count("\n")) == ((1, 1) if name == "broken" else (0, 0))
        assert ("no.such.Addon" in ran.err) == (name == "broken")
    else:
        assert (ran.code, ran.out) == (0, f"{name}: 1 new request, 0 duplicates\n")
        assert ran.err.count("\n") == 1
        assert "'broken'" in ran.err
    if name == "books":
        config = frontier.config()
        assert config is not None
        assert (config.order, config.spider) == ("lifo", "books")


class TestPushFromStdin:
    def test_closed(self, redisq: Redisq, monkeypatch: pytest.MonkeyPatch) -> None:
        """``push books - <&-``: wrong usage, in one line."""
        monkeypatch.setattr(sys, "stdin", None)
        ran = redisq("push", "books", "-")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "stdin" in ran.err

    def test_something_that_cannot_be_read(
        self, redisq: Redisq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One line with the reason, after what was pushed."""
        with (tmp_path / "write-only").open("w") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            ran = redisq("push", "books", "-")
        assert ran.code == 1
        assert "stopped after 0 new requests" in ran.err
        assert "Bad file descriptor" in ran.err

    def test_a_terminal(
        self, redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It says what it waits for; Ctrl-D ends it."""
        leader, follower = pty.openpty()
        os.write(leader, b"https://a.example/1\nhttps://a.example/2\n\x04")
        with os.fdopen(follower, "r") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            ran = redisq("push", "books", "-")
        os.close(leader)
        assert ran.out == "books: 2 new requests, 0 duplicates\n"
        assert "Ctrl-D" in ran.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_terminals_without_utf_8(
    redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """Helps, tables, names and URLs appear in whatever the terminal can show."""
    frontier.push([{"url": "https://a.example/ü", "callback": "parse_ü"}, *some_urls(2)])
    Worker(frontier).finish("dead", "download", "größer → ĸ")
    frontier.limit("Gruppe Ä ĸ", delay=1)
    frontier.push(["https://ü.example/"])
    for args in (
        *(["slots", "-h"], ["slots", "pause", "-h"], ["push", "-h"], ["status"], ["slots"]),
        *(["dead", "list", "books"], ["dead", "show", "books", "0-1"], ["slots", "--limit", "0"]),
        *(["status", "ĸ"], ["dead", "list", "ĸ"], ["slots", "pause", "books", "ĸ"]),
    ):
        raw = io.BytesIO()
        out = io.TextIOWrapper(raw, encoding=encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            ran = redisq(*args)
            out.flush()
        told = raw.getvalue().decode(encoding)
        if args[0] != "dead" or args[-1] != "ĸ":
            assert (ran.code, ran.err) == (0, "")
            assert told
        if args == ["dead", "list", "books"]:
            assert (r"\u2192 parse_" if encoding != "utf-8" else "→ parse_ü") in told


def test_names_in_a_locale_without_utf_8(redisq: Redisq, frontier: Frontier) -> None:
    """They arrive as bytes that Python could not decode, and are the same names."""
    frontier.push(["https://bücher.example/"])
    given = "bücher.example".encode().decode("ascii", "surrogateescape")
    assert "xn--bcher-kva.example is paused (1 queued" in redisq("slots", "pause", given).out
    assert redisq("status", "a\udcff").err.count("\n") == 1
    ran = redisq("slots", "pause", "books", "a\udcff")
    assert "Traceback" not in ran.err


def test_a_terminal_that_does_not_know_its_width(
    redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says 0, as in containers: nothing at all was printed."""
    frontier.push(["https://a.example/"])
    monkeypatch.setenv("COLUMNS", "0")
    assert "a.example" in redisq("slots", "books").out
    assert "created" in redisq("status", "books").out


@pytest.mark.parametrize(("term", "can"), [("dumb", False), ("xterm", True)])
def test_what_can_show_a_table_anew(monkeypatch: pytest.MonkeyPatch, term: str, can: bool) -> None:
    """On a dumb terminal (Emacs, some CI) `--watch` showed nothing at all, for ever."""
    monkeypatch.setenv("TERM", term)
    assert display.can_refresh(Console(force_terminal=True)) is can


def test_nobody_reads(redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stdout closed, or its disk full, there is an exit code and no traceback."""
    frontier.push(some_urls(3))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert redisq("status").code == redisq("slots").code == 0
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        ran = redisq("slots")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "No space left" in ran.err


@pytest.mark.parametrize("folder", ["absent", "empty"])
@pytest.mark.parametrize(
    ("args", "code"),
    [
        *((["status", "books"], 0), (["status", "books", "--json"], 0), (["status"], 0)),
        *((["slots", "books"], 1), (["dead", "list", "books"], 1), (["reset", "books"], 0)),
    ],
)
def test_looking_at_nothing_starts_nothing(
    redisq: Redisq, tmp_path: Path, args: list[str], code: int, folder: str
) -> None:
    """In a folder where no embedded server has run it stays so."""
    place = tmp_path / "redisq"
    if folder == "empty":
        place.mkdir()
    ran = redisq(*args, REDISQ_URL=f"embedded://{place}")
    assert ran.code == code
    assert list(tmp_path.rglob("*")) == ([place] if folder == "empty" else [])
    if args == ["status", "books"]:
        assert ran.out == "books: there is no such frontier\n"
    if "--json" in args:
        assert json.loads(ran.out)["state"] == "absent"


def test_locks_that_are_refused(
    redisq: Redisq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On file systems without flock there is one line that names the folder and the setting."""

    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "keep").touch()
    for args in (["status"], ["push", "books", "https://a.example/"], ["server", "start"]):
        ran = redisq(*args, REDISQ_URL=f"embedded://{tmp_path / 'redis'}")
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert "REDISQ_URL" in ran.err
        assert "No locks available" in ran.err


def text_of(table: RenderableType, width: int) -> str:
    """What a terminal of so many columns shows."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(width=width, record=True, file=nowhere)
        console.print(table)
        return console.export_text()


BEGAN = "2026-01-01T00:00:00+00:00"
LARGE: dict[str, Any] = {
    **absent("a-frontier-of-a-long-name"),
    **{"state": "running", "run": "a1b2c3", "run_name": "nightly", "began": BEGAN},
    **{"created": 1_234_567_890, "queued": 123_456_789, "delayed": 12_345_678, "leased": 12_345},
    **{"finished": 1_111_111_111, "dead": 1_234_567, "done": 1_109_876_544, "dropped": 54_321},
    **{"duplicates": 9_876_543_210, "reclaimed": 23_456, "seen": 1_234_567_891},
    "dupefilter": {"kind": "bloom", "backend": "bitmap", "fill": 0.1, "expected_loss": 0},
    "workers": [
        {
            **{"id": "w", "host": "a-long-name.of-a-host.internal", "pid": 4_194_304},
            **{"leased": 1_000, "pages": 22_345_678, "items": 323_456_789, "since": BEGAN},
            **{"seen_ago": 3.04, "alive": False, "spider": "books"},
        }
    ],
}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_number_vanishes(width: int) -> None:
    """However narrow the terminal is, all numbers and names are there, and no line is longer."""
    rates = {"": 1_234.5, "w": 7.5}
    slot = SlotStatus(
        **{"slot": "a-very-long-host-name." * 3 + "example", "queued": 12_345_678},
        **{"leased": 1_000, "next_start": 3_600.0, "delay": 3_600.0, "delay_from": "settings"},
        **{"limit": SlotLimit(1.25, 10_000, 0.5, 2_000), "limit_from": "settings"},
        **{"failures": 12, "parked": 3_600.0, "status": 503},
        **{"set_aside": BEGAN, "paused": BEGAN, "ruled": None},
    )
    summary = SlotSummary()
    shown = list(summary.count([slot, dataclasses.replace(slot, slot="b.example", queued=76_543)]))
    other = {**LARGE, "frontier": "other", "queued": 7}
    everything = {
        display.full(LARGE, rates): (
            "1,234,567,890 123,456,789 12,345,678 12,345 1,111,111,111 1,234,567 1,109,876,544 "
            "54,321 9,876,543,210 23,456 1,234,567,891 1,000 22,345,678 323,456,789 1,234.5 7.5 3.0"
        ),
        display.overview([LARGE, other], [1_234.5, None]): (
            "135,802,467 12,345,685 12,345 1,111,111,111 1,234,567 1,234.5 other running"
        ),
        slot_table("books", shown, summary): (
            "12,345,678 1,000 503 76,543 b.example 10,000 2,000 1.25 30/m 12"
        ),
    }
    for table, parts in everything.items():
        text = text_of(table, width)
        assert max(map(len, text.splitlines())) <= width
        words = set(text.replace(",\n", "\n").replace(", ", " ").split())
        assert set(parts.split()) <= words
        assert "…" not in text


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "-5"])
def test_foreign_times_of_slots(redisq: Redisq, frontier: Frontier, score: str) -> None:
    """Whatever somebody writes where times stand: the slot is listed, and paused if it is."""
    frontier.push(some_urls(1))
    key = "redisq:{books:0}:"
    for name in ("aside", "paused", "ruled", "ready"):
        frontier.client.execute_command("ZADD", key + name, score, "a.example")
    frontier.client.hset(
        key + "slot:a.example",
        mapping=dict.fromkeys(
            ("last", "tat", "parked", "pause", "fails", "status", "robots", "throttle"), score
        ),
    )
    frontier.client.hset(key + "busy", "a.example", 3)
    for args in (["slots"], ["slots", "--json"], ["slots", "--limit", "0"], ["status"]):
        ran = redisq(*args)
        assert (ran.code, ran.err) == (0, "")
    ran = redisq("slots", "--json")
    told = {each["slot"]: each for each in map(json.loads, ran.out.splitlines())}
    assert told["a.example"]["paused"]
    assert told["a.example"]["set_aside"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("config:error_rate", "-1"), ("config:error_rate", "0"), ("began", "9" * 30)),
        *(("run", "\x1b"), ("state", "\x1b[31m"), ("config:scheduling", "\x1b[31m")),
    ],
)
def test_a_foreign_configuration(
    redisq: Redisq, frontier: Frontier, field: str, value: str
) -> None:
    """It is shown as well as it can be, or named in one line."""
    frontier.push(some_urls(1))
    frontier.client.hset("redisq:{books:0}:meta", field, value)
    frontier.client.zadd("redisq:{books:0}:workers", {"w1": "-inf", "w2": "inf"})
    for args in (["status"], ["status", "books", "--json"], ["slots"], ["reset", "books"]):
        ran = redisq(*args)
        assert ran.err.count("\n") <= (2 if args[0] == "reset" else 1)
        assert "\x1b" not in ran.out + ran.err
        if ran.code and args[0] != "reset":
            assert "redisq:{books:0}:meta" in ran.err


def test_redis_goes_away_in_an_export(
    redisq: Redisq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is as it was, nothing is left beside it, and one line says what happened."""
    server = RedisServer(any_server())
    path = tmp_path / "dead.jsonl"
    path.write_text("good")
    try:
        with Frontier.from_url(server.url, "books") as frontier:
            frontier.push(some_urls(20))
            worker = Worker(frontier)
            for session, lease in worker.claim():
                session.add(Finish(lease.id, "dead", "download"))
            worker.exchange(worker.sessions[0])
            assert len(list(frontier.dead())) == 20
        monkeypatch.setattr(letters, "READ_BATCH", 5)
        written: list[str] = []

        def write(letter: Any) -> dict[str, Any]:
            written.append(letter.id)
            if len(written) == 7:
                server.kill()
            return as_json(letter)

        monkeypatch.setattr(told_letters, "as_json", write)
        ran = redisq("dead", "export", "books", str(path), REDISQ_URL=server.url)
    finally:
        server.close()
    assert len(written) == 10
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith("scrapy redisq: Redis: ")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(path.name, "good")]


def test_a_reader_that_has_enough(
    redis_server: RedisServer, frontier: Frontier, tmp_path: Path
) -> None:
    """``| head -1``: no traceback, nothing on stderr."""
    frontier.push(f"https://{n}.example/" for n in range(3_000))
    command = [sys.executable, "-m", "scrapy", "redisq", "slots", "--json"]
    with subprocess.Popen(
        [*command, *at(redis_server)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().split()[:1] == [b'{"frontier":']
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1
