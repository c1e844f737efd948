"""Files of dead letters: written whole, and read back to delete what they hold, and only that."""

from __future__ import annotations

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
    name, given = clean(frontier.name), Path(arguments.file)
    written: int | None
    if given.exists() and not given.is_file():  # a pipe, a device: nothing that could be replaced
        with given.open("w", encoding="utf-8") as file:
            written = _write(frontier.name, letters, file.write)
    else:  # what a link leads to is replaced, not the link
        written = _replace(given.resolve(), frontier.name, letters)
    if written is None:
        kept = f"{clean(arguments.file)} is left as it was"
        print(f"{name}: no dead letters to export; {kept}", file=sys.stderr)
        return 1
    print(f"{name}: {counted(written, 'dead letter')} exported to {clean(arguments.file)}")
    return 0


def _replace(path: Path, name: str, letters: Iterable[DeadLetter]) -> int | None:
    """All of it or nothing: an export that was cut off would look like a complete one. None: the
    file holds something, and there are no letters."""
    try:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            "w", dir=path.parent, prefix=f".{path.name}.", encoding="utf-8", delete=False
        )
    except OSError as error:  # nobody has ever seen the name that it says
        raise OSError(error.errno, error.strerror, str(path)) from None
    new = Path(file.name)
    with file:
        try:
            written = _write(name, letters, file.write)
            if path.exists():  # who could read it still can
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
                if not written and path.stat().st_size:
                    new.unlink()
                    return None
            file.flush()
            os.fsync(file.fileno())  # its letters may be purged from Redis next
            new.replace(path)
        except BaseException:
            new.unlink()
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
