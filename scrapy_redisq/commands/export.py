"""Files of dead letters: written whole, and read back to delete what they hold, and only that."""

from __future__ import annotations

import itertools
import json
import os
import stat
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from scrapy_redisq.commands.display import clean
from scrapy_redisq.control import DeadLetter, Frontier
from scrapy_redisq.control.dead_letters import place_of
from scrapy_redisq.control.words import counted
from scrapy_redisq.errors import RedisqError


class NoExport(RedisqError):
    """Raised when a file is not what ``dead export`` writes. The message says why."""


def export(arguments: Namespace, frontier: Frontier) -> int:
    """Write dead letters to a file or stdout; 1 if there are none to put in the place of a file."""
    letters = frontier.dead(reason=arguments.reason, slot=arguments.slot)
    if arguments.file == "-":
        _write(frontier.name, letters, sys.stdout.write)
        return 0
    given = Path(arguments.file)
    path = given.resolve()  # what a link leads to is replaced, not the link
    first = next(letters, None)
    if first is None and path.is_file() and path.stat().st_size:
        kept = f"{clean(arguments.file)} is left as it was"
        print(f"{clean(frontier.name)}: no dead letters to export; {kept}", file=sys.stderr)
        return 1
    if first is not None:
        letters = itertools.chain([first], letters)
    if given.exists() and not given.is_file():  # a pipe, a device: nothing that could be replaced
        with given.open("w", encoding="utf-8") as file:
            written = _write(frontier.name, letters, file.write)
    else:
        written = _replace(path, lambda write: _write(frontier.name, letters, write))
    what = counted(written, "dead letter")
    print(f"{clean(frontier.name)}: {what} exported to {clean(arguments.file)}")
    return 0


def _replace(path: Path, write_all: Callable[[Callable[[str], object]], int]) -> int:
    """All of it or nothing: an export that was cut off would look like a complete one."""
    try:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
        )
    except OSError as error:  # nobody has ever seen the name that it says
        raise OSError(error.errno, error.strerror, str(path)) from None
    with file:
        try:
            if path.exists():  # who could read it still can
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            written = write_all(file.write)
            file.flush()
            # Its letters may be purged from Redis next.
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise
    return written


def _write(name: str, letters: Iterable[DeadLetter], write: Callable[[str], object]) -> int:
    written = 0
    for letter in letters:
        write(json.dumps(letter.exported(name)) + "\n")
        written += 1
    return written


def purge_exported(arguments: Namespace, frontier: Frontier) -> int:
    """Delete the dead letters that a file of `export` holds, as far as they are still the same.

    Nothing is deleted if anything in the file is not what `export` writes. 1 if letters were kept
    because they differ from those of the file.
    """
    with Path(arguments.exported).open("rb") as file:
        told = {line["id"]: line["digest"] for line in _lines(file, frontier.name)}
    kept = 0

    def same() -> Iterator[DeadLetter]:
        nonlocal kept
        for letter in frontier.dead_letters(told):
            if told.get(letter.id) == letter.digest:
                yield letter
            else:
                kept += 1

    purged = len(frontier.purge_same(same()))
    print(f"{clean(frontier.name)}: {counted(purged, 'dead letter')} purged")
    if gone := len(told) - purged - kept:
        print(f"{gone:,} of the file are not there any more", file=sys.stderr)
    if kept:
        print(f"{kept:,} are not as they are in the file, and were kept", file=sys.stderr)
    return 1 if kept else 0


def _lines(file: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    """What an export of the frontier ``name`` holds. Raises `NoExport` if it is anything else."""
    for number, line in enumerate(file, start=1):
        try:
            letter = json.loads(line)
            place_of(letter["id"])
            whole = isinstance(letter["frontier"], str) and isinstance(letter["digest"], str)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            whole = False
        if not whole:
            what = "is not of an export of dead letters, or is cut off"
        elif letter["frontier"] != name:
            what = f"is of the frontier {letter['frontier']!r}, not of {name!r}"
        else:
            yield letter
            continue
        raise NoExport(f"{file.name}: line {number} {what}; nothing was deleted")
