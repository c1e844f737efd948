"""Tables that cut nothing off: what does not fit beside each other is put below each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

Cell = str | Text
GAP = 2
"""Blanks between two columns."""
CHUNK = 200
"""Lines that are written at a time."""


@dataclass(frozen=True)
class Column:
    """``narrowest``: how far it may be narrowed, by folding what is in it; 0: not at all.
    ``left``: it holds words, which need no name beside them."""

    name: str
    narrowest: int = 0
    left: bool = False


NAME_COLUMN = 14
"""Narrowest column of names that are folded."""


class Table:
    """A table whose columns are as wide as those rows need that it is given at first.

    Where they don't fit, each row is a paragraph: its first cell, then the others with their names.
    """

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
        self._columns = columns
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines(console, options.max_width)

    def lines(
        self, console: Console, width: int, more: Iterable[Sequence[Cell]] = ()
    ) -> Iterator[Text]:
        """The rows, then ``more`` as they come, in the columns of the rows."""
        rows = itertools.chain(self._rows, more)
        widths = self._widths(width, spare=bool(more))
        if widths is None:
            for row in rows:
                yield from self._paragraph(console, row, width)
            return
        head = self._line([column.name for column in self._columns], widths)
        head.stylize("dim")
        yield head
        yield Text("─" * (sum(widths) + GAP * (len(widths) - 1)), style="dim")
        for row in rows:
            yield from self._row(console, row, widths)

    def _widths(self, width: int, *, spare: bool) -> list[int] | None:
        """How wide each column is; None: they do not fit. ``spare``: names may become longer."""
        columns = range(len(self._columns))
        widths = [
            max(
                [
                    self._columns[i].narrowest if spare else 0,
                    cell_len(self._columns[i].name),
                    *(_width(row[i]) for row in self._rows),
                ]
            )
            for i in columns
        ]
        while sum(widths) + GAP * (len(widths) - 1) > width:
            foldable = [i for i in columns if 0 < self._columns[i].narrowest < widths[i]]
            if not foldable:
                return None
            widths[max(foldable, key=widths.__getitem__)] -= 1
        return widths

    def _row(self, console: Console, row: Sequence[Cell], widths: list[int]) -> Iterator[Text]:
        """The lines of a row. A number that is wider than its column moves the rest."""
        parts = [
            _folded(console, cell, width)
            if (_width(cell) > width and column.narrowest) or "\n" in str(cell)
            else [cell]
            for cell, width, column in zip(row, widths, self._columns, strict=True)
        ]
        for cells in itertools.zip_longest(*parts, fillvalue=""):
            yield self._line(cells, widths)

    def _line(self, cells: Sequence[Cell], widths: list[int]) -> Text:
        parts: list[Cell] = []
        blanks = 0  # none at the end of a line
        for cell, width, column in zip(cells, widths, self._columns, strict=True):
            free = max(0, width - _width(cell))
            if not cell:
                blanks += width + GAP
                continue
            parts += [" " * (blanks if column.left else blanks + free), cell]
            blanks = GAP + free * column.left
        if all(isinstance(part, str) for part in parts):  # most are, and `Text.append` takes time
            return Text("".join(map(str, parts)))
        return Text.assemble(*parts)

    def _paragraph(self, console: Console, row: Sequence[Cell], width: int) -> Iterator[Text]:
        name, *others = row
        yield from _folded(console, name, width)
        pairs = zip(self._columns[1:], others, strict=True)
        items = [
            _text(cell) if column.left else Text.assemble((f"{column.name} ", "dim"), cell)
            for column, cell in pairs
            if cell
        ]
        yield from flow(console, items, width)


def flow(console: Console, items: Iterable[Text], width: int) -> Iterator[Text]:
    """Items one after the other, indented, as many on a line as fit; none is torn if it fits."""
    line = Text()
    for item in items:
        parts = _folded(console, item, width - GAP)
        if not line or len(parts) > 1 or cell_len(line.plain) + GAP + _width(item) > width:
            if line:
                yield line
            for part in parts[:-1]:
                yield Text(" " * GAP) + part
            line = Text()
        line = line + Text(" " * GAP) + parts[-1]
    if line:
        yield line


def _width(cell: Cell) -> int:
    text = cell if isinstance(cell, str) else cell.plain
    if text.isascii() and "\n" not in text:
        return len(text)
    return max(map(cell_len, text.split("\n")))


def _text(cell: Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else cell


def _folded(console: Console, cell: Cell, width: int) -> list[Text]:
    lines = _text(cell).wrap(console, max(1, width), overflow="fold")
    for line in lines:
        line.rstrip()
    return list(lines) or [Text()]


def write_lines(console: Console, lines: Iterable[Text]) -> None:
    """Write lines as they come; those that are too long are the terminal's to fold."""
    rest = iter(lines)
    while chunk := list(itertools.islice(rest, CHUNK)):
        if console.is_terminal:
            console.print(Text("\n").join(chunk), soft_wrap=True)
        else:
            console.file.write("".join(f"{line.plain}\n" for line in chunk))
        console.file.flush()
