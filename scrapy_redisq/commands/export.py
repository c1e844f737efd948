"""Files of dead letters: written whole, and read back to delete what they hold, and only that."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
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
    lines = (json.dumps(letter.exported(frontier.name)) + "\n" for letter in letters)
    if arguments.file == "-":
        sys.stdout.writelines(lines)
        return 0
    name, shown = clean(frontier.name), clean(arguments.file)
    path = Path(arguments.file).resolve()  # what a link leads to is replaced, not the link
    if path.exists() and not path.is_file():
        raise NoExport(f"{path} is no file: for a pipe write -, which is stdout")
    # All of it or nothing: an export that was cut off would look like a complete one.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    new = Path(temporary)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            written = sum(1 for line in lines if file.write(line))
            file.flush()
            os.fsync(descriptor)  # its letters may be purged from Redis next
        if not written and path.exists() and path.stat().st_size:
            print(f"{name}: no dead letters to export; {shown} is left as it was", file=sys.stderr)
            return 1
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    print(f"{name}: {counted(written, 'dead letter')} exported to {shown}")
    return 0


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
    """The contents of an export of the frontier ``name``. Raises `NoExport` if it is no export."""
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
