"""Tables that cut nothing off: where the columns do not fit, each row is a paragraph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import rich.table
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

Cell = str | Text
GAP = 2
"""Blanks between two columns."""
NARROWEST = 14
"""Narrowest column whose cells are folded."""


@dataclass(frozen=True)
class Column:
    """``folds``: long cells may be folded. ``left``: it holds words, which need no name beside
    them in a paragraph."""

    name: str
    folds: bool = False
    left: bool = False


class Table:
    """A table of rich where its columns fit. Else its rows one after the other: the first cell,
    then the others with their names."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
        self._columns = columns
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._least_width() > options.max_width:
            for row in self._rows:
                yield from self._paragraph(row)
            return
        table = rich.table.Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, GAP - 1, 0, 0),
            header_style="dim",
            border_style="dim",
        )
        for column in self._columns:
            justify = "left" if column.left else "right"
            no_wrap = not column.folds
            table.add_column(column.name, justify=justify, no_wrap=no_wrap, overflow="fold")  # type: ignore[arg-type]
        for row in self._rows:
            table.add_row(*map(_text, row))
        yield table

    def _least_width(self) -> int:
        least = GAP * (len(self._columns) - 1)
        for i, column in enumerate(self._columns):
            widest = max(cell_len(column.name), *(_width(row[i]) for row in self._rows), 0)
            least += min(widest, NARROWEST) if column.folds else widest
        return least

    def _paragraph(self, row: Sequence[Cell]) -> Iterator[RenderableType]:
        name, *others = row
        yield Text(str(name), overflow="fold")
        pairs = zip(self._columns[1:], others, strict=True)
        yield flow(
            _text(cell) if column.left else Text.assemble((f"{column.name} ", "dim"), cell)
            for column, cell in pairs
            if cell
        )


def flow(items: Iterable[Text]) -> RenderableType:
    """Items one after the other, indented, as many on a line as fit."""
    text = Text(" " * GAP, overflow="fold").join(items)
    return Padding(text, (0, 0, 0, GAP))


def _width(cell: Cell) -> int:
    return max(map(cell_len, str(cell).split("\n")))


def _text(cell: Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else cell
