"""``scrapy redisq dead``: looking at dead letters, trying them again, deleting the right ones."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from lab.servers import RedisServer
from scrapy_redisq.control import Frontier
from scrapy_redisq.frontier.operations import Finish, Letter
from tests.control.member import Member, die, some_urls
from tests.harness.command import Redisq


@pytest.fixture
def letters(frontier: Frontier) -> list[str]:
    """Ids of 25 dead letters, newest first; every fifth died of item_error."""
    frontier.push(
        {"url": f"https://a.example/{i}", "callback": "parse_x", "meta": {"n": i}}
        for i in range(25)
    )
    worker = Member(frontier)
    for n, lease in enumerate(worker.claim(25)):
        reason = "item_error" if n % 5 == 0 else "spider_error"
        detail = "KeyError: '\x1b[31m'\nFrames"
        worker.sessions[0].add(Finish(lease.id, "dead", reason, detail))
    worker.exchange()
    return [letter.id for letter in frontier.dead()]


def test_list(redisq: Redisq, letters: list[str]) -> None:
    """The newest 20: id, reason, URL, callback, and the first line of the detail."""
    ran = redisq("dead", "list", "books")
    assert ran.code == 0
    heads = [line.split()[:2] for line in ran.out.splitlines() if line.startswith("0-")]
    assert [head[0] for head in heads] == letters[:20]
    assert heads[0][1] == "spider_error"
    assert "  https://a.example/24 → parse_x\n" in ran.out
    assert "  KeyError: '\\x1b[31m'\n" in ran.out
    assert "--limit 0" in ran.out
    everything = redisq("dead", "list", "books", "--limit", "0").out
    assert everything.count("https://") == 25
    assert "--limit" not in everything


def test_json(redisq: Redisq, frontier: Frontier) -> None:
    """All of a letter in JSON, whatever types its request holds; all letters by default."""
    request = {
        **{"url": "https://a.example/", "method": "POST", "body": "ü", "headers": {"X": "1"}},
        "meta": {
            **{"f": float("inf"), "b": b"\xff", "t": (1, 2), "k": {4: 5}},
            **{"s": {"b", "a", 1, (2, "x")}, "n": 10**5_000},
        },
    }
    frontier.push([request])
    Member(frontier).end_all("dead", "download", "gone")
    (line,) = redisq("dead", "list", "books", "--json").out.splitlines()
    letter = json.loads(line, parse_constant=pytest.fail)
    assert (letter["id"], letter["reason"], letter["detail"]) == ("0-1", "download", "gone")
    assert (letter["slot"], letter["priority"], letter["deliveries"]) == ("a.example", 0, 0)
    assert letter["request"] == {
        **request,
        "class": "Request",
        "headers": {"X": ["1"]},
        "meta": {
            **{"f": "inf", "b": "\\xff", "t": [1, 2], "k": {"4": 5}},
            **{"s": ["a", "b", 1, [2, "x"]], "n": hex(10**5_000)},
        },
    }


def test_an_entry_that_nobody_can_read(redisq: Redisq, frontier: Frontier) -> None:
    """A foreign entry is listed with what it seems to be."""
    frontier.push(["https://a.example/"])
    queue = "redisq:{books:0}:queue:a.example:0"
    frontier.client.lset(queue, 0, b"\x00\x80\x04pickled.")
    Member(frontier).end_all("dead", "undecodable")
    assert "(not an entry of scrapy-redisq, begins with" in redisq("dead", "list", "books").out
    letter = json.loads(redisq("dead", "list", "books", "--json").out)
    assert (letter["request"], letter["undecodable"][:12]) == (None, "not an entry")


def test_requeue(redisq: Redisq, frontier: Frontier, letters: list[str]) -> None:
    """Those named, once; an id of nothing makes the code 1. Then one reason's, then all that are
    left, then none."""
    ran = redisq("dead", "requeue", "books", letters[0], letters[1], letters[1])
    assert ran == (0, "books: 2 dead letters requeued\n", "")
    ran = redisq("dead", "requeue", "books", letters[0], letters[2])
    assert (ran.code, ran.out) == (1, "books: 1 dead letter requeued\n")
    assert "no such dead letter: 1" in ran.err
    assert frontier.status()["queued"] == 3
    ran = redisq("dead", "requeue", "books", "--reason", "item_error")
    assert ran.out == "books: 5 dead letters requeued\n"
    assert redisq("dead", "requeue", "books", "--all").out.startswith("books: 17 dead")
    assert redisq("dead", "requeue", "books", "--all").out.startswith("books: 0 dead")
    told = frontier.status()
    assert (told["queued"], told["dead"]) == (25, 0)


def test_show(redisq: Redisq, frontier: Frontier, letters: list[str]) -> None:
    """All of one letter, for people and as JSON; an id of nothing makes the code 1."""
    ran = redisq("dead", "show", "books", letters[0])
    assert ran.code == 0
    for text in (letters[0], "spider_error", "a.example", '"n": 24', "KeyError: '\\x1b[31m'"):
        assert text in ran.out
    assert "claimed" in ran.out
    (listed,) = redisq("dead", "list", "books", "--json", "--limit", "1").out.splitlines()
    shown = redisq("dead", "show", "books", letters[0], "--json").out
    assert json.loads(shown) == json.loads(listed)
    assert redisq("dead", "show", "books", "0-999").code == 1
    assert redisq("dead", "show", "books", "x").code == 2


def test_purge(redisq: Redisq, frontier: Frontier, letters: list[str]) -> None:
    """Those chosen, then all; they remain counted."""
    ran = redisq("dead", "purge", "books", letters[0], "--all")
    assert (ran.code, ran.out) == (2, "")
    assert "--all, or --reason R and --slot S, or --exported FILE" in ran.err
    assert redisq("dead", "purge", "books", letters[0]).out == "books: 1 dead letter purged\n"
    assert redisq("dead", "purge", "books", letters[0]).code == 1
    ran = redisq("dead", "purge", "books", "--reason", "item_error")
    assert ran.out == "books: 5 dead letters purged\n"
    assert redisq("dead", "purge", "books", "0-1", "--reason", "x").code == 2
    assert redisq("dead", "purge", "books").code == 2
    assert redisq("dead", "purge", "books", "--all").out == "books: 19 dead letters purged\n"
    assert list(frontier.dead()) == []
    told = frontier.status()
    assert (told["dead"], told["finished"], told["created"]) == (25, 25, 25)
    with frontier.client as client:
        assert not client.exists("redisq:{books:0}:dead", "redisq:{books:0}:letters")


def test_export(redisq: Redisq, frontier: Frontier, letters: list[str], tmp_path: Path) -> None:
    """One JSON object a line with the stored request; a file is replaced as a whole."""
    path = tmp_path / "letters.jsonl"
    path.write_text("old")
    ran = redisq("dead", "export", "books", str(path))
    assert ran == (0, f"books: 25 dead letters exported to {path}\n", "")
    exported = [json.loads(line) for line in path.read_text().splitlines()]
    assert [letter["id"] for letter in exported] == letters
    stored = {letter.id: letter.entry for letter in frontier.dead()}
    assert all(base64.b64decode(each["entry"]) == stored[each["id"]] for each in exported)
    lines = redisq("dead", "export", "books", "-", "--reason", "item_error").out.splitlines()
    assert len(lines) == 5
    ran = redisq("dead", "export", "books", str(tmp_path / "no" / "file"))
    assert ran.code == 1
    assert "no/file" in ran.err or "No such file" in ran.err
    assert [each.name for each in tmp_path.iterdir() if "letters" in each.name] == [path.name]


def test_a_name_that_is_none(redisq: Redisq, frontier: Frontier, tmp_path: Path) -> None:
    """A typo is an error that lists the names, not an empty list; no file is replaced for it."""
    frontier.push(some_urls(1))
    (tmp_path / "old").write_text("kept")
    for action, *rest in (
        *(["list"], ["show", "0-1"], ["requeue", "--all"], ["purge", "--all"], ["export", "old"]),
        *(["list", "--json"], ["purge", "--exported", "old"], ["requeue", "0-1"]),
    ):
        ran = redisq("dead", action, "boosk", *rest)
        assert ran == (1, "", "scrapy redisq: there is no frontier 'boosk'; there are: books\n")
    assert (tmp_path / "old").read_text() == "kept"


def test_purging_while_others_die(redisq: Redisq, frontier: Frontier, tmp_path: Path) -> None:
    """`purge --exported` deletes what the file has, not what came after it."""
    die(frontier, "w1", 250)
    path = str(tmp_path / "dead.jsonl")
    assert redisq("dead", "export", "books", path).code == 0
    later = die(frontier, "w2", 30)
    ran = redisq("dead", "purge", "books", "--exported", path)
    assert ran == (0, "books: 250 dead letters purged\n", "")
    assert {letter.worker for letter in frontier.dead()} == {later}
    ran = redisq("dead", "purge", "books", "--exported", path)
    assert ran.out == "books: 0 dead letters purged\n"
    assert (ran.code, ran.err) == (0, "250 of the file are not there any more\n")
    assert len(list(frontier.dead())) == 30


def test_lines_that_are_of_no_letter(redisq: Redisq, frontier: Frontier, tmp_path: Path) -> None:
    """A line that is cut off, or something else, is named, and nothing is deleted; one that was
    edited is of another letter, which is kept."""
    die(frontier, "w1", 3)
    path = tmp_path / "dead.jsonl"
    assert redisq("dead", "export", "books", str(path)).code == 0
    lines = path.read_bytes().splitlines(keepends=True)
    for last in (
        *(b"[]", b"x", lines[2][:-20], b"[" * 100_000, b"\xff", b'{"id": "0-1"}'),
        *(
            b'{"id": %s, "digest": "", "frontier": "books"}' % id
            for id in (b"1", b'"x"', b'"9999999999-1"')
        ),
    ):
        path.write_bytes(lines[0] + lines[1] + last)
        ran = redisq("dead", "purge", "books", "--exported", str(path))
        assert (ran.code, ran.out) == (1, "")
        assert "line 3 is not of an export" in ran.err
        assert ran.err.count("\n") == 1
    for n, changes in enumerate(({"id": "0-2"}, {"id": "00-1"}, {"digest": ""})):
        path.write_bytes(lines[0] + json.dumps({**json.loads(lines[2]), **changes}).encode())
        ran = redisq("dead", "purge", "books", "--exported", str(path))
        assert ran[:2] == (1, f"books: {0 if n else 1} dead letter{'s' if n else ''} purged\n")
    assert [letter.id for letter in frontier.dead()] == ["0-2", "0-1"]


def test_exports_of_others(
    redisq: Redisq, frontier: Frontier, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The same ids of another frontier, or of this one before a reset, are other letters."""
    die(frontier, "w1", 3)
    path = tmp_path / "dead.jsonl"
    assert redisq("dead", "export", "books", str(path)).code == 0
    frontier.reset(force=True)
    die(frontier, "w1", 3, "spider_error")
    with Frontier.from_url(redis_server.url, "films") as films:
        die(films, "w1", 3)
        ran = redisq("dead", "purge", "films", "--exported", str(path))
        assert (ran.code, ran.out) == (1, "")
        assert "line 1 is of the frontier 'books', not of 'films'" in ran.err
        assert len(list(films.dead())) == 3
    ran = redisq("dead", "purge", "books", "--exported", str(path))
    assert (ran.code, ran.out) == (1, "books: 0 dead letters purged\n")
    assert ran.err == "3 are not as they are in the file, and were kept\n"


def test_nothing_to_export(redisq: Redisq, frontier: Frontier, tmp_path: Path) -> None:
    """Nothing does not take the place of a good file, as after a typo in --reason."""
    die(frontier, "w1", 1)
    path = tmp_path / "dead.jsonl"
    path.write_text("good")
    ran = redisq("dead", "export", "books", str(path), "--reason", "spider_eror")
    assert (ran.code, ran.out) == (1, "")
    assert "left as it was" in ran.err
    assert path.read_text() == "good"
    ran = redisq("dead", "export", "books", str(tmp_path / "new"), "--reason", "x")
    assert (ran.code, (tmp_path / "new").read_text()) == (0, "")


def test_letters_without_a_request(redisq: Redisq, frontier: Frontier) -> None:
    """What could not be kept at all cannot be tried again: said so, and left for people."""
    die(frontier, "w1", 3)
    worker = Member(frontier)
    worker.sessions[0].add(Letter("a.example", 0, b"1" * 16, "too_large", "it is", "error", 0))
    worker.exchange()
    ran = redisq("dead", "requeue", "books", "0-1", "0-4", "0-9")
    assert (ran.code, ran.out) == (1, "books: 1 dead letter requeued\n")
    assert "1 hold no request" in ran.err
    assert "no such dead letter: 1 of" in ran.err
    ran = redisq("dead", "requeue", "books", "--all")
    assert (ran.code, ran.out) == (0, "books: 2 dead letters requeued\n")
    assert "1 hold no request" in ran.err
    assert redisq("dead", "purge", "books", "--all").out == "books: 1 dead letter purged\n"
    assert redisq("dead", "requeue", "books", "--all").err == ""
