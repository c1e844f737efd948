"""The command line in odd places: no UTF-8, 60 columns, no stdin, broken spiders, no Redis yet."""

from __future__ import annotations

import dataclasses
import io
import os
import pty
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis
from rich.console import Console, Group

from scrapy_redisq.commands import display
from scrapy_redisq.commands.slots import slot_tables
from scrapy_redisq.control import DeadLetter, Frontier, SlotStatus
from scrapy_redisq.control.frontier_status import absent
from scrapy_redisq.frontier.limits import SlotLimit
from tests.control.member import Member, die, some_urls
from tests.harness.command import Redisq

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
        """``push books - <&-``: wrong usage."""
        monkeypatch.setattr(sys, "stdin", None)
        ran = redisq("push", "books", "-")
        assert (ran.code, ran.out) == (2, "")
        assert "stdin" in ran.err

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


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_terminals_without_utf_8(
    redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """Helps, tables, names and URLs appear in whatever the terminal can show."""
    frontier.push([{"url": "https://a.example/ü", "callback": "parse_ü"}, *some_urls(2)])
    Member(frontier).end_all("dead", "download", "größer → ĸ")
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


def test_looking_at_nothing_starts_nothing(redisq: Redisq, tmp_path: Path) -> None:
    """In a folder where no embedded server has run it stays so."""
    for args, code, said in (
        ("status books", 0, "books: there is no such frontier: no embedded server has run in "),
        ("status books --json", 0, '"state": "absent"'),
        *(("status", 0, ""), ("reset books", 0, "")),
        *(("slots books", 1, ""), ("dead list books", 1, "")),
    ):
        ran = redisq(*args.split(), REDISQ_URL=f"embedded://{tmp_path / 'redisq'}")
        assert (ran.code, list(tmp_path.iterdir())) == (code, [])
        assert said in " ".join(ran.out.split())


BEGAN = "2026-01-01T00:00:00+00:00"
LARGE: dict[str, Any] = {
    **absent("a-frontier-of-a-long-name"),
    **{"state": "running", "run": "a1b2c3", "run_name": "nightly", "began": BEGAN},
    **{"created": 1_234_567_890, "queued": 123_456_789, "delayed": 12_345_678, "leased": 12_345},
    **{"finished": 1_111_111_111, "dead": 1_234_567, "done": 1_109_876_544, "dropped": 54_321},
    **{"duplicates": 9_876_543_210, "reclaimed": 23_456, "seen": 1_234_567_891},
    "dupefilter": {"kind": "bloom", "backend": "bitmap", "fill": 0.1, "expected_loss": 0},
    **{"why": {"reason": "complete"}, "pages_per_minute": 1_234.5, "left": 4_000},
    "workers": [
        {
            **{"id": "w", "host": "a-long-name.of-a-host.internal", "pid": 4_194_304},
            **{"leased": 1_000, "pages": 22_345_678, "items": 323_456_789, "since": BEGAN},
            **{"seen_ago": 3.04, "alive": True, "release": "12345678", "told": "", "quiet": False},
            **{"pages_per_minute": 7.5, "cpu_seconds": 5.0, "rss_bytes": 2**20, "sink": ""},
        }
    ],
}


@pytest.mark.parametrize("width", [40, 80])
def test_no_number_vanishes(width: int) -> None:
    """All numbers and names are there, and no line is longer than the terminal."""
    slot = SlotStatus(
        **{"slot": "a-very-long-host-name." * 3 + "example", "queued": 12_345_678},
        **{"leased": 1_000, "next_start": 3_600.0, "delay": 3_600.0, "delay_from": "settings"},
        **{"limit": SlotLimit(1.25, 10_000, 0.5, 2_000), "limit_from": "settings"},
        **{"failures": 12, "parked": 3_600.0, "status": 503},
        **{"set_aside": BEGAN, "paused": BEGAN, "ruled": None},
    )
    shown = [slot, dataclasses.replace(slot, slot="b.example", queued=76_543)]
    one, other = ({**LARGE, "frontier": name, "finished": 111_111_111} for name in ("one", "other"))
    everything = {
        display.full(LARGE): (
            "1,234,567,890 123,456,789 12,345,678 12,345 1,111,111,111 1,234,567 1,109,876,544 "
            "54,321 9,876,543,210 23,456 1,234,567,891 1,000 22,345,678 323,456,789 1,234.5 7.5 3.0"
        ),
        display.overview([one, other]): (
            "135,802,467 12,345 111,111,111 1,234,567 1,234 one other running"
        ),
        Group(*slot_tables("books", shown, Counter(slots=2))): (
            "12,345,678 1,000 503 76,543 b.example 10,000 2,000 1.25 30/m 12"
        ),
    }
    for table, parts in everything.items():
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(table)
        text = console.export_text()
        assert max(map(len, text.splitlines())) <= width
        words = set(text.replace(",\n", "\n").replace(", ", " ").split())
        assert set(parts.split()) <= words
        assert "…" not in text


def test_redis_goes_away_in_an_export(
    redisq: Redisq, frontier: Frontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is as it was, nothing is left beside it, and one line says what happened."""
    die(frontier, "w1", 20)
    path = tmp_path / "dead.jsonl"
    path.write_text("good")
    to_json = DeadLetter.to_json

    def until_it_is_away(letter: DeadLetter) -> dict[str, Any]:
        if letter.id == "0-7":
            raise redis.ConnectionError("it is away")
        return to_json(letter)

    monkeypatch.setattr(DeadLetter, "to_json", until_it_is_away)
    ran = redisq("dead", "export", "books", str(path))
    assert ran == (1, "", "scrapy redisq: Redis: it is away\n")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(path.name, "good")]


def test_a_reader_that_has_enough(
    redisq: Redisq, frontier: Frontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``| head -1``: no traceback, nothing on stderr."""
    frontier.push(f"https://{n}.example/" for n in range(300))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        ran = redisq("slots", "--json")
    assert (ran.code, ran.err) == (1, "")
