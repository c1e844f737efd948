"""Marks in a copy of the project by which a crawl tells the statements of mutants that it reached.

They go to the log of the zygote's Redis, which takes no virtual time: scripts write there anyhow.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import redis

from lab.servers import RedisServer, any_server
from tests.mutants.faults import Mutant

REACHED = '''"""Beside the zygote's socket is the log of its Redis."""

import sys


def reached(number):
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

        for number, mutant in enumerate(mutants):
            file = package / mutant.path
            text = file.read_text()
            mutant.apply(text)  # raises unless it is there once
            at = text.index(mutant.old) + len(mutant.old) - len(mutant.old.lstrip())
            if mutant.path.endswith(".lua"):
                file.write_text(_in_lua(text, at, number, compiles))
            else:
                file.write_text(_in_python(text, at, number))


def reached(log: str) -> set[int]:
    """The numbers, by their order, of mutants that a ``log`` tells of."""
    return {int(number) for number in re.findall(r"\breached (\d+)$", log, re.M)}


def _in_python(text: str, at: int, number: int) -> str:
    """With a mark before the innermost statement that holds the place ``at``."""
    lines = text.splitlines(keepends=True)
    line = text.count("\n", 0, at) + 1
    holding = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
        if not lines[node.lineno - 1].lstrip().startswith("elif ")
    ]
    inner = max(holding, key=lambda node: node.lineno)
    told = f"from scrapy_redisq.reached import reached; reached({number})\n"
    lines.insert(inner.lineno - 1, " " * inner.col_offset + told)
    return "".join(lines)


_WORD = re.compile(r"--.*|'[^'\n]*'|\w+")
"""Of Lua. Comments and texts are one word, too."""


def _in_lua(text: str, at: int, number: int, compiles: Callable[[str], bool]) -> str:
    """As `_in_python`: a statement begins where a block may stand. What is over at ``at``, a block
    or another branch, is passed over."""
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
        told = f"do redis.log(redis.LOG_WARNING, 'reached {number}') end "
        if compiles(marked := text[:start] + told + text[start:]):
            return marked
    raise ValueError(f"no statement holds {text[at : at + 60]!r}")
