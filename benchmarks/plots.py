"""Plots as SVG, small enough to write by hand, readable on white and on black."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

WIDTH = 760
COLOURS = ("#0a7bc2", "#d9640f", "#0b9a72", "#c56a9d", "#8a8f98")
"""Okabe and Ito's colours, darkened a little: told apart by everybody, on white and on black."""

STYLE = """<style>
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #727b85 }
.title { font-size: 16px; font-weight: 600 }
.grid { stroke: #8a8f98; stroke-opacity: .3 }
@media (prefers-color-scheme: dark) { text { fill: #adb6bf } }
</style>"""

LABEL_HEIGHT = 17


def lines(
    title: str,
    x_title: str,
    ticks: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    log: bool = False,
) -> str:
    """Lines over evenly spaced ticks, each with its name and last value at its end."""
    height, left, right, top, bottom = 420, 60, 250, 60, 60
    values = [value for points in series.values() for value in points if value is not None]
    low, high, steps = _scale(values, log)
    place = math.log10 if log else float

    def x(i: int) -> float:
        return left + (WIDTH - left - right) * i / max(1, len(ticks) - 1)

    def y(value: float) -> float:
        share = (place(value) - place(low)) / (place(high) - place(low))
        return height - bottom - share * (height - top - bottom)

    parts = [_text(left - 40, 30, title, "title")]
    for step in steps:
        parts.append(_grid(left, WIDTH - right + 10, y(step)))
        parts.append(_text(left - 8, y(step) + 4, _short(step), anchor="end"))
    for i, tick in enumerate(ticks):
        parts.append(_text(x(i), height - bottom + 24, tick, anchor="middle"))
    parts.append(_text((left + WIDTH - right) / 2, height - 12, x_title, anchor="middle"))
    ends = []
    for colour, (name, points) in zip(_colours(), series.items(), strict=False):
        known = [(x(i), y(v)) for i, v in enumerate(points) if v is not None]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in known)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="{colour}"/>' for px, py in known
        ]
        last = [value for value in points if value is not None][-1]
        ends.append((known[-1], f"{name}: {_short(last)}", colour))
    at = _apart([point[1] for point, _, _ in ends])
    for (point, label, colour), label_y in zip(ends, at, strict=True):
        start, end = point[0] + 8, WIDTH - right + 26
        parts.append(
            f'<path d="M{start:.1f},{point[1]:.1f} L{end},{label_y:.1f}" stroke="{colour}" '
            f'stroke-opacity=".5" fill="none"/>'
        )
        parts.append(_text(end + 5, label_y + 4, label, colour=colour))
    return _svg(height, title, parts)


def bars(title: str, values: Mapping[str, float], unit: str, *, ours: Callable[[str], bool]) -> str:
    """One horizontal bar a value; those for whose names ``ours`` is true stand out."""
    left, right, top, row = 330, 80, 56, 28
    height = top + row * len(values) + 16
    scale = (WIDTH - left - right) / max(values.values())
    parts = [_text(20, 30, title, "title")]
    for i, (name, value) in enumerate(values.items()):
        colour = COLOURS[0] if ours(name) else COLOURS[-1]
        y = top + row * i
        parts.append(_text(left - 10, y + 15, name, anchor="end"))
        width = max(1.5, value * scale)
        parts.append(
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="20" rx="2" fill="{colour}"/>'
        )
        parts.append(_text(left + width + 7, y + 15, f"{_short(value)} {unit}"))
    return _svg(height, title, parts)


def write(file: Path, svg: str) -> None:
    """Write a plot, and its folder if need be."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(svg, encoding="utf-8")


def _scale(values: Sequence[float], log: bool) -> tuple[float, float, list[float]]:
    """Lowest and highest value of the axis, and where it has lines."""
    if log:
        first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        last = max(last, first + 1)
        return 10.0**first, 10.0**last, [10.0**n for n in range(first, last + 1)]
    rough = max(values) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * n for n in (1, 2, 5, 10) if unit * n >= rough)
    count = math.ceil(max(values) / step)
    return 0.0, step * count, [step * n for n in range(count + 1)]


def _apart(heights: Sequence[float]) -> list[float]:
    """The same heights, moved so that labels do not overlap."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = {i: heights[i] for i in order}
    for _ in range(100):
        for above, below in itertools.pairwise(order):
            overlap = placed[above] + LABEL_HEIGHT - placed[below]
            if overlap > 0:
                placed[above] -= overlap / 2
                placed[below] += overlap / 2
    return [placed[i] for i in range(len(heights))]


def _colours() -> list[str]:
    return [*COLOURS, *COLOURS]


def _short(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} million"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _grid(x1: float, x2: float, y: float) -> str:
    return f'<line class="grid" x1="{x1}" x2="{x2}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _text(
    x: float, y: float, text: str, kind: str = "", *, anchor: str = "start", colour: str = ""
) -> str:
    kind = f' class="{kind}"' if kind else ""
    style = f' style="fill: {colour}"' if colour else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}{kind}{style}>{escape(text)}</text>"


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">'
    )
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, *parts, "</svg>"]) + "\n"
