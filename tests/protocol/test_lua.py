"""The Lua files: what their heads say is so, and a server takes each script."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from scrapy_redisq.frontier import admin, calls
from scrapy_redisq.frontier.config import FrontierConfig
from scrapy_redisq.frontier.operations import (
    Delivered,
    DownloadResult,
    Enqueue,
    Finish,
    Lease,
    Letter,
    Link,
    Reply,
    TurnReport,
)
from scrapy_redisq.frontier.run_session import RunSession
from scrapy_redisq.frontier.scripts import ALWAYS, COMMENT, Call, includes_of, load, source
from scrapy_redisq.frontier.seen import SeenFilter, clock_and_probe
from scrapy_redisq.frontier.shard_session import ShardSession
from scrapy_redisq.frontier.terms import Terms

FOLDER = Path(str(resources.files("scrapy_redisq.frontier"))) / "lua"
FILES = {
    path.relative_to(FOLDER).with_suffix("").as_posix(): path.read_text("utf-8")
    for path in FOLDER.rglob("*.lua")
}
SHARED = sorted(name for name in FILES if name.startswith("shared/"))
SCRIPTS = sorted(set(FILES) - set(SHARED))
BACKENDS = sorted(name.rpartition("/")[2] for name in SHARED if name.startswith("shared/seen/"))

MOST_LINES = 300
STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
DEFINED = re.compile(r"^local (?:function (\w+)|([\w, ]+))", re.M)
BOUND = re.compile(r"^ +local (?!function)([\w, ]+)|function[ \w]*\(([\w, ]+)\)", re.M)


def code_of(text: str) -> str:
    """Without comments and strings."""
    return "\n".join(STRING.sub("''", line).partition("--")[0] for line in text.split("\n"))


def names(found: list[tuple[str, str]]) -> set[str]:
    """What one of two groups of a pattern found, which may be several names."""
    return {name.strip() for groups in found for name in "".join(groups).split(",")}


def definitions(text: str) -> set[str]:
    """What a file defines for those that include it."""
    return names(DEFINED.findall(code_of(text)))


def uses(text: str, name: str) -> bool:
    """Whether a file uses what another one defines. Where it also has a name of its own like that,
    only a call counts."""
    code = code_of(text)
    call = r"\(" if name in names(BOUND.findall(code)) else r"\b"
    return re.search(rf"(?<![.\w]){name}{call}", code) is not None


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_head_includes_what_the_file_uses(name: str) -> None:
    """Neither less, as it would fail when it gets there, nor more, as each file costs time."""
    text = FILES[name]
    included = includes_of(text)
    assert {entry.rpartition("=")[2] for entry in included} <= {*SHARED, "shared/seen/BACKEND"}
    own = definitions(text)
    used = {
        room
        for room in SHARED
        if room not in (name, *ALWAYS)
        and not room.startswith("shared/seen/")
        and any(uses(text, word) for word in definitions(FILES[room]) - own - {"redis"})
    }
    functions = {entry for entry in included if "=" in entry}
    assert set(included) - functions == used
    assert all(uses(text, entry.partition("=")[0]) for entry in functions)


def test_lines_are_as_long_as_those_in_python() -> None:
    """Heads, too: they are read more often than written."""
    long = {
        name for name, text in FILES.items() if any(len(line) > 100 for line in text.split("\n"))
    }
    assert not long


def test_a_name_is_defined_once() -> None:
    """A file that is included never hides what another one defines."""
    owners: dict[str, str] = {}
    for name in SHARED:
        if not name.startswith("shared/seen/"):
            for word in definitions(FILES[name]):
                assert owners.setdefault(word, name) == name


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_included_is_there_once(name: str) -> None:
    """Also where several files include it, and before each file that does."""
    text, codes = source(name, "bitmap"), {file: COMMENT.sub("", FILES[file]) for file in SHARED}
    found = [file for file in SHARED if codes[file] in text and not file.startswith("shared/seen/")]
    assert set(found) >= set(ALWAYS)
    for file in found:
        assert text.count(codes[file]) == 1
        for included in includes_of(FILES[file]):
            path = included.rpartition("=")[2].replace("BACKEND", "bitmap")
            assert text.index(codes[path]) < text.index(codes[file])


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_file_is_a_room(name: str) -> None:
    """Small enough to be read at once."""
    assert FILES[name].count("\n") < MOST_LINES


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_server_takes_the_script(client: redis.Redis, name: str) -> None:
    """It is Lua, with no more local names than a server allows."""
    backends = BACKENDS if source(name, "exact") != source(name, "bitmap") else [""]
    for backend in backends:
        script = load(name, backend)
        assert client.script_load(script.text) == script.sha


# What goes in

INPUT = re.compile(r"^-- Input +(\S.*(?:\n-- {3,}\S.*)*)", re.M)
BRACKETS = re.compile(r"\([^(){}]*\)|\{[^(){}]*\}")
CONFIG = FrontierConfig(dupefilter="exact", backend="exact")
JOINED = calls.Joined("r", 1, True, "", "", CONFIG, "r", 0, 1)


def inputs(name: str) -> set[str]:
    """The names in a head's Input block: what is explained stands in brackets behind its name."""
    found = INPUT.search(FILES[name])
    text = found[1].replace("\n--", " ") if found else ""
    while text != (shorter := BRACKETS.sub("", text)):
        text = shorter
    text = re.sub(r"\b[\w ]+:", "", text)  # of whom or what the names behind it are
    return set(filter(None, map(str.strip, re.split(r"[,;]|\bor\b", text))))


def exchange() -> Call[object]:
    """One that carries everything that there is."""
    joined = replace(JOINED, config=replace(CONFIG, spread=True, shards=2))
    nothing: Any = None
    run_session = RunSession(nothing, Terms("n", CONFIG, 1, 1, 1, 0, history=1, rewind=0))
    session, other = (ShardSession(run_session, shard, joined, "w") for shard in range(2))
    run_session.sessions = [session, other]
    for _ in range(2):
        other.call()
        other.received(Reply("ok"))
    session.held["1"] = Lease("1", "s", 0, 0, b"")
    for operation in (
        Enqueue("s", 0, b"", b"f", also=b"g"),
        Letter("s", 0, b"i", "reason", ""),
        Finish("1", "done"),
        Finish("5", "done", record=("1", b"r")),
        Finish("3", "done", links=[Enqueue("t", 0, b"", b"i", page="3", link=Link())]),
        Delivered("4"),
        *(Finish("2", how) for how in ("dead", "released", "backed_off", "retried")),
    ):
        session.add(operation)
    session.outgoing.tally["count"] = 1
    session.outgoing.download_results.append(DownloadResult("s", 200, 0.0))
    session.outgoing.statuses["s"] = 200
    return session.call(room={"s": 1}, turns=[TurnReport("s", -1, 0, 0, 0, 0)], report="{}")


def test_heads_name_what_calls_send() -> None:
    """The Input of each script is what its call sends, all of it, and nothing else."""
    seen = SeenFilter("exact")
    terms: tuple[calls.Intent, ...] = (
        *(calls.crawl("r"), calls.produce("r")),
        *(calls.follow(JOINED), calls.come_back("r", "w")),
    )
    made: list[Call[object]] = [
        exchange(),
        calls.push("n", 0, "r", "exact", [], [], []),
        calls.robots_txt("n", 0, "r", "host"),
        *(calls.join("n", 0, intent, CONFIG) for intent in terms),
        calls.clock("n"),
        clock_and_probe("n"),
        calls.leave("n", 0, "r", "w"),
        calls.complete("n", 0),
        calls.open_run("n", 0, "r"),
        calls.look("n", 0),
        calls.reap("n", 0, "r", 1, 1),
        admin.mend("n", 0),
        calls.status("n", 0),
        admin.waits("n", 0),
        admin.find("n", 0, "queues", "s", "t", ""),
        admin.ask_seen("n", 0, "r", "g", b"f", seen),
        admin.forget_seen("n", 0, "r", "g", b"f"),
        calls.clear("n", 0),
        admin.letters("n", 0, after=(b"1", b"1"), most=1),
        admin.named_letters("n", 0, []),
        admin.purge("n", 0, []),
        admin.requeue("n", 0, [(b"1", "", None)]),
        admin.list_slots("n", 0),
        admin.slot_queues("n", 0, "s"),
        admin.rule("n", 0, "s", paused=True),
        admin.rule("n", 0, "s", own=""),
        admin.drop("n", 0, "s", "0"),
        calls.crawl_delay("n", 0, "r", "host", "s", 0.0),
        calls.record_seen("n", "g", seen, []),
        admin.seen_status("n", 0, "g", seen),
        calls.sweep("n", 0, "exact"),
        calls.take_posts("n", 0, "r", most=1, hold=1.0),
        admin.series("n", 0, seconds=10, most=1),
        admin.marks("n"),
        admin.history("n", 0),
        admin.note("n", "by", "what", "on", 1),
        admin.actions("n"),
        admin.tell("n", "quiet", None),
        admin.pause_run("n", paused=True),
    ]
    fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
    sent: dict[str, set[str]] = {name: set() for name in SCRIPTS}
    for call in made:
        sent[call.script.name] |= fields.decode(call.payload).keys()
    assert sent == {name: inputs(name) for name in SCRIPTS}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_reads_what_its_head_names(name: str) -> None:
    """Nothing is read that is not sent."""
    assert set(re.findall(r"\binput\.(\w+)", code_of(FILES[name]))) <= inputs(name)
