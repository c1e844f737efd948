"""One data set of many workers: each worker writes parts, which are put together at the end.

::

    books.jsonl                         JSON Lines or CSV, each item once; replaced as a whole
    books.jsonl.parts/TIME-RUN-….jsonl  the items of a batch: their keys, and what they hold
    books.jsonl.parts/_together         of which parts books.jsonl was made

A part is never changed, and a part of which a process has written half is hidden. So to put parts
together can be interrupted and repeated, by anybody.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

import msgspec
from scrapy.settings import BaseSettings

from scrapy_redisq.errors import SettingError, SinkError, SinkMismatch, SinkUnavailable
from scrapy_redisq.files import safe_name
from scrapy_redisq.files.folders import Folder, open_folder
from scrapy_redisq.server.url import redact
from scrapy_redisq.settings.settings import RedisqSettings

ENDING = ".jsonl"
"""Of parts, and of data sets that are JSON Lines."""

_LINE = re.compile(rb'\{"redisq_key":"([0-9a-f]{32})"(?:,(.*)|)\}')

_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Together(NamedTuple):
    """What was put together: ``items`` of ``parts``; ``lines`` of these are of the run in question.
    ``missing``: fields of FEED_EXPORT_FIELDS that no item has."""

    items: int
    lines: int
    parts: int
    missing: Sequence[str]


class _Overtaken(SinkError):
    """Raised when another process has put the parts together meanwhile, perhaps more of them."""


class Dataset:
    """The data set of a spider, as REDISQ_DATASET says. Raises `SettingError`, as all methods
    `SinkUnavailable`."""

    def __init__(self, settings: RedisqSettings, spider: str, scrapys: BaseSettings) -> None:
        name = type(settings).dataset.name
        run = settings.run_name(spider)
        self._targets: list[tuple[Folder, str]] = []
        for pattern in settings.dataset:
            if not run and "%(run)s" in pattern:
                raise SettingError(name, redact(pattern), "%(run)s if REDISQ_RUN names the run")
            url = pattern % {"spider": safe_name(spider), "run": safe_name(run)}
            if not self._targets:
                self.address = redact(url)
            folder, slash, base = url.rpartition("/")
            self._targets.append((open_folder(f"{folder}{slash}" or ".", scrapys, name), base))
        self._home, first = self._targets[0]
        self._parts = f"{first}.parts"
        self._mark = f"{self._parts}/_together"
        fields = scrapys.getdictorlist("FEED_EXPORT_FIELDS")
        self._fields = fields if isinstance(fields, dict) else {field: field for field in fields}

    def check(self) -> None:
        """Raise if no file can be written."""
        for folder, _ in self._targets:
            folder.check()

    def write_part(self, name: str, lines: Iterable[bytes]) -> None:
        """Write a part, or replace one."""
        self._home.put(f"{self._parts}/{name}", b"".join(lines))

    def is_current(self) -> bool:
        """Whether all parts that there are have been put together."""
        names = self._names()
        return not names or _is_of(self._home.get(self._mark), names)

    def put_together(self, run: str = "") -> Together:
        """Make the data set of the parts that there are now: of the items of one key the one that
        was written last, in the order in which they were written. Where there is no part it leaves
        everything as it is.

        Takes a temporary file of some 60 bytes an item, 64 MB of memory, and what a few parts take.
        Raises `SinkMismatch` for a part with anything else in it.
        """
        together = None
        while together is None:
            try:
                with contextlib.closing(sqlite3.connect("")) as index:
                    together = self._put_together(index, run)
            except sqlite3.Error as error:
                raise SinkUnavailable(f"its temporary file (TMPDIR): {error}") from None
        return together

    def _put_together(self, index: sqlite3.Connection, run: str) -> Together | None:
        """None: another process has put other parts together meanwhile."""
        before, names = self._home.get(self._mark), self._names()
        if not names:
            return Together(0, 0, 0, ())
        together, fields = self._look_through(names, index, run)
        try:
            for folder, base in self._targets:
                folder.put_lines(base, self._made(base, names, index, fields, before))
            self._check_not_overtaken(names, before)  # while the last line was on its way
        except SinkError:
            if (mark := self._home.get(self._mark)) == before:
                raise
            return together if _is_of(mark, names) else None
        # Different each time: who is overtaken sees that, also where the parts are the same.
        self._home.put_lines(self._mark, [_digest(names), secrets.token_hex(4).encode()])
        for folder, base in self._targets:
            folder.remove_halves(base)
        return together

    def _names(self) -> list[str]:
        return self._home.names(self._parts, ENDING)

    def _look_through(
        self, names: Sequence[str], index: sqlite3.Connection, run: str
    ) -> tuple[Together, Mapping[str, str]]:
        """Have the index say which item of each key is the last one; -> also which fields to write,
        and as what; {}: all, as they are."""
        index.execute("PRAGMA journal_mode = OFF")
        index.execute("PRAGMA cache_size = -65536")  # KB; the rest is in a temporary file
        index.execute("CREATE TABLE last (key BLOB PRIMARY KEY, place INTEGER) WITHOUT ROWID")
        asks = bool(self._fields) or any(_is_csv(base) for _, base in self._targets)
        found: dict[str, str] = {}
        lines = 0

        def keys() -> Iterator[tuple[bytes, int]]:
            nonlocal lines
            for place, (part, key, item) in enumerate(self._items(names)):
                if asks:
                    found.update((name, name) for name in _values(item))
                lines += run in part
                yield key, place

        index.executemany("INSERT OR REPLACE INTO last VALUES (?, ?)", keys())
        (items,) = index.execute("SELECT count(*) FROM last").fetchone()
        missing = [name for name in self._fields if name not in found]
        return Together(items, lines, len(names), missing), self._fields or found

    def _items(self, names: Sequence[str]) -> Iterator[tuple[str, bytes, bytes]]:
        for name, data in self._home.read(self._parts, names):
            for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), start=1):
                if not (parts := _LINE.fullmatch(line)):
                    raise SinkMismatch(
                        f"line {number} of {self.address}.parts/{name} is none that "
                        "DatasetPipeline writes: put that file elsewhere"
                    )
                yield name, bytes.fromhex(parts[1].decode()), b"{%s}" % (parts[2] or b"")

    def _made(
        self,
        base: str,
        names: Sequence[str],
        index: sqlite3.Connection,
        fields: Mapping[str, str],
        before: bytes,
    ) -> Iterator[bytes]:
        """The lines of a data set; raises `_Overtaken` behind the last one."""
        places = (place for (place,) in index.execute("SELECT place FROM last ORDER BY place"))
        wanted = next(places, None)
        if is_csv := _is_csv(base):
            yield from [_csv_line(fields.values())] if fields else []
        for place, (_, _, item) in enumerate(self._items(names)):
            if place != wanted:
                continue
            wanted = next(places, None)
            if is_csv:
                values = _values(item)
                yield _csv_line(_cell(values.get(name)) for name in fields)
            elif self._fields:
                values = _values(item)
                chosen = {fields[name]: values[name] for name in fields if name in values}
                yield msgspec.json.encode(chosen) + b"\n"
            else:
                yield item + b"\n"
        self._check_not_overtaken(names, before)

    def _check_not_overtaken(self, names: Sequence[str], before: bytes) -> None:
        mark = self._home.get(self._mark)
        if mark != before and not _is_of(mark, names):
            raise _Overtaken


def new_name(run: str, writer: str, number: int) -> str:
    """The name of a part of a run that is written now: names are in the order of time."""
    now = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%f}"
    return f"{now}-{run or 'alone'}-{writer}-{number:06}{ENDING}"


def line(key: str, item: bytes) -> bytes:
    """The line of an item, which is a JSON object, in a part."""
    return b'{"redisq_key":"%s"%s%s\n' % (key.encode(), b"," if len(item) > 2 else b"", item[1:])


def _digest(names: Sequence[str]) -> bytes:
    return hashlib.sha256("\n".join(names).encode()).hexdigest().encode()


def _is_of(mark: bytes, names: Sequence[str]) -> bool:
    return mark.startswith(_digest(names))


def _is_csv(base: str) -> bool:
    return not base.endswith(ENDING)


class _Line:
    """What `csv` writes to: it returns what it is given."""

    def write(self, text: str) -> str:
        return text


_writer = csv.writer(_Line())


def _csv_line(cells: Iterable[str]) -> bytes:
    text: str = _writer.writerow(cells)
    return text.encode()


def _cell(value: msgspec.Raw | None) -> str:
    """A text as it is, anything else as JSON; nothing for null."""
    json = b"" if value is None else bytes(value)
    if json[:1] == b'"':
        return msgspec.json.decode(json, type=str)
    return "" if json == b"null" else json.decode()
