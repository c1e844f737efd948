"""Marks in a copy of the project by which a crawl tells the statements of mutants that it reached;
where a condition or a value is another one by the mutant, that it was.

They go to the log of the zygote's Redis, which takes no virtual time: scripts write there anyhow.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import redis

from lab.servers import RedisServer, any_server
from tests.mutants.faults import Mutant

REACHED = '''"""Beside the zygote's socket is the log of its Redis."""

import sys


def reached(number, differs=lambda: True):
    try:
        if not differs():
            return
    except Exception:
        pass
    with open(sys.argv[1].replace("redis.sock", "log"), "a") as log:
        print("reached", number, file=log)
'''


def mark(project: Path, mutants: list[Mutant]) -> None:
    """Let crawls by the copy in the folder ``project`` log which of the ``mutants`` they reach."""
    package = project / "scrapy_redisq"
    (package / "reached.py").write_text(REACHED)
    with RedisServer(any_server("redis-7")) as server, server.client() as client:

        def compiles(lua: str) -> bool:
            try:
                return bool(client.script_load(lua))
            except redis.ResponseError:
                return False

        marks: dict[Path, list[tuple[int, str]]] = defaultdict(list)
        for number, mutant in enumerate(mutants):
            file = package / mutant.path
            text = file.read_text()
            if mutant.path.endswith(".lua"):
                marks[file].append(_in_lua(text, mutant, number, compiles))
            else:
                marks[file].append(_in_python(text, mutant, number))
    for file, those in marks.items():
        text = file.read_text()
        for at, told in sorted(those, reverse=True):
            text = text[:at] + told + text[at:]
        file.write_text(text)


def reached(log: str) -> set[int]:
    """The numbers, by their order, of mutants that a ``log`` tells of."""
    return {int(number) for number in re.findall(r"\breached (\d+)$", log, re.M)}


def _place(text: str, mutant: Mutant) -> int:
    """Where the mutant's text begins, behind blanks."""
    return text.index(mutant.old) + len(mutant.old) - len(mutant.old.lstrip())


def _in_python(text: str, mutant: Mutant, number: int) -> tuple[int, str]:
    """The place of a mark, before the innermost statement that holds the mutant's text, and the
    mark. Raises `ValueError` as `Mutant.apply` does."""
    at = _place(text, mutant)
    lines = text.splitlines(keepends=True)
    line = text.count("\n", 0, at) + 1

    def inner(text: str) -> ast.stmt | None:
        holding = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
            if not lines[node.lineno - 1].lstrip().startswith("elif ")
        ]
        return max(holding, key=lambda node: node.lineno, default=None)

    both = (found := inner(text), inner(mutant.apply(text)))
    assert found is not None
    parts = [getattr(one, "test", getattr(one, "value", None)) for one in both]
    differs = ""
    if type(both[0]) is type(both[1]) and all(parts):
        old, new = map(ast.unparse, parts)
        if not _ACTS.search(old):
            differs = f", lambda: ({old}) != ({new})"
    told = f"from scrapy_redisq.reached import reached; reached({number}{differs})\n"
    return sum(map(len, lines[: found.lineno - 1])), " " * found.col_offset + told


_ACTS = re.compile(r"\bawait\b|:=|\bpop\(|\bpace\.|\bexchange\(|sign_of_life|monotonic")
"""In a value: it cannot be looked at twice, nor can the clock."""

_WORD = re.compile(r"--.*|'[^'\n]*'|\w+")
"""Of Lua. Comments and texts are one word, too."""


_PARTS = re.compile(r"\s*if (.*) then\b|.*\breturn (.*?)(?: end)?$|\s*(?:local )?([\w.]+) = (.*)")
"""Of a line of Lua: a condition, a value that is returned, or a name and its value."""


def _differs(old: str, new: str) -> str:
    """The condition, in Lua, by which two lines do something else; "" if that is not known."""
    if not (parts := _PARTS.match(old)):
        return ""
    others = _PARTS.match(new)
    condition, value, name, given = parts.groups()
    if _ACTS.search(old):
        return ""
    if condition and (not new.strip() or (others and others[1] == condition)):
        return condition  # what it guards is gone
    if condition:
        return f"(not ({condition})) ~= (not ({others[1]}))" if others and others[1] else ""
    if name and not new.strip():
        return f"{name} ~= ({given})"
    other = others and (others[2] if value else others[4])
    return f"({value or given}) ~= ({other})" if other else ""


def _in_lua(
    text: str, mutant: Mutant, number: int, compiles: Callable[[str], bool]
) -> tuple[int, str]:
    """As `_in_python`: a statement begins where a block may stand. What is over before the text, a
    block or another branch, is passed over."""
    at = _place(text, mutant)
    line = text.count("\n", 0, at)
    differs = _differs(text.splitlines()[line], mutant.apply(text).splitlines()[line])
    told = f"redis.log(redis.LOG_WARNING, 'reached {number}') end "
    depth = 0
    for found in reversed([one for one in _WORD.finditer(text) if one.start() <= at]):
        word, start = found[0], found.start()
        if word in ("end", "until"):
            depth += 1
        elif word in ("else", "elseif"):
            depth = max(depth, 1)
        elif depth:
            depth -= word in ("if", "function", "do", "repeat")
        if depth or not word[0].isalpha() or word == "do":  # before which a block is a loop's
            continue
        for block in ([f"if {differs} then "] if differs else []) + ["do "]:
            if compiles(text[:start] + block + told + text[start:]):
                return start, block + told
    raise ValueError(f"no statement holds {text[at : at + 60]!r}")
