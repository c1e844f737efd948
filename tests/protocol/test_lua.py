"""The Lua files: each includes what it uses, and a server takes each script."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path

import pytest
import redis

from scrapy_redisq.frontier.scripts import ALWAYS, includes_of, load, source

FOLDER = Path(str(resources.files("scrapy_redisq.frontier"))) / "lua"
FILES = {
    path.relative_to(FOLDER).with_suffix("").as_posix(): path.read_text("utf-8")
    for path in FOLDER.rglob("*.lua")
}
SHARED = sorted(name for name in FILES if name.startswith("shared/"))
SCRIPTS = sorted(set(FILES) - set(SHARED))
BACKENDS = sorted(name.rpartition("/")[2] for name in SHARED if name.startswith("shared/seen/"))

STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
DEFINED = re.compile(r"^local (?:function (\w+)|([\w, ]+))", re.M)
BOUND = re.compile(r"^ +local (?!function)([\w, ]+)|function[ \w]*\(([\w, ]+)\)", re.M)


@cache
def code_of(text: str) -> str:
    """Without comments and strings."""
    return "\n".join(STRING.sub("''", line).partition("--")[0] for line in text.split("\n"))


def names(found: list[tuple[str, str]]) -> set[str]:
    """What one of two groups of a pattern found, which may be several names."""
    return {name.strip() for groups in found for name in "".join(groups).split(",")}


@cache
def definitions(text: str) -> set[str]:
    """What a file defines for those that include it."""
    return names(DEFINED.findall(code_of(text)))


@cache
def _used(text: str) -> tuple[set[str], set[str], set[str]]:
    """The names in a file, those that it calls, and those of its own inside of functions."""
    code = code_of(text)
    words, called = re.findall(r"(?<![.\w])\w+", code), re.findall(r"(?<![.\w])(\w+)\(", code)
    return set(words), set(called), names(BOUND.findall(code))


def uses(text: str, name: str) -> bool:
    """Whether a file uses what another one defines. Where it also has a name of its own like that,
    only a call counts."""
    words, called, own = _used(text)
    return name in (called if name in own else words)


def test_a_head_includes_what_the_file_uses() -> None:
    """Neither less, as it would fail when it gets there, nor more, as each file costs time."""
    for name, text in FILES.items():
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
        assert set(included) - functions == used, name
        assert all(uses(text, entry.partition("=")[0]) for entry in functions), name


def test_a_name_is_defined_once() -> None:
    """A file that is included never hides what another one defines."""
    owners: dict[str, str] = {}
    for name in SHARED:
        if not name.startswith("shared/seen/"):
            for word in definitions(FILES[name]):
                assert owners.setdefault(word, name) == name


@pytest.mark.servers("every")
def test_a_server_takes_each_script(client: redis.Redis) -> None:
    """It is Lua, with no more local names than a server allows."""
    for name in SCRIPTS:
        backends = BACKENDS if source(name, "exact") != source(name, "bitmap") else [""]
        for backend in backends:
            script = load(name, backend)
            assert client.script_load(script.text) == script.sha, name
