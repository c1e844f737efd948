"""Draws docs/architecture.svg: the rooms of scrapy_redisq on their floors, by the code's imports.

``make picture`` calls it. A room is a module or package directly in scrapy_redisq; what it is for
is the first sentence of its docstring. The floors are those of the map in
``scrapy_redisq/__init__.py``; tests/docs/test_architecture.py holds the imports against them.
"""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import combinations, pairwise
from pathlib import Path

PICTURE = Path(__file__).with_name("architecture.svg")
PACKAGE = Path(__file__).parent.parent / "scrapy_redisq"

NOUNS = ("worker/", "control/", "frontier/")
"""The rooms that all others are arranged around."""

Floors = list[list[str]]
Arrows = Mapping[str, set[str]]

# What the code says


def floors() -> Floors:
    """The rooms as the map in the package's docstring has them, packages with a slash behind, from
    the top floor to the lowest. In the map two blanks part rooms from each other and from what is
    said of them."""
    found: Floors = []
    for line in docstring(PACKAGE / "__init__.py").splitlines():
        if re.match(r"    \w", line):
            cells = re.split(r" {2,}", line.strip())
            found.append([cell for cell in cells if re.fullmatch(r"\w+/?", cell)])
    return found


def rooms() -> Iterator[str]:
    """Modules and packages of scrapy_redisq as they lie there, packages with a slash behind."""
    for path in sorted(PACKAGE.iterdir()):
        if (path / "__init__.py").exists():
            yield path.name + "/"
        elif path.suffix == ".py" and path.stem != "__init__":
            yield path.stem


def file_of(room: str) -> Path:
    """Where the room's docstring is."""
    return PACKAGE / (f"{room}__init__.py" if room.endswith("/") else f"{room}.py")


def files_of(room: str) -> list[Path]:
    """All modules in a room."""
    return sorted((PACKAGE / room).rglob("*.py")) if room.endswith("/") else [file_of(room)]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def docstring(path: Path) -> str:
    return ast.get_docstring(parsed(path)) or ""


def imports(path: Path) -> Iterator[str]:
    """The modules of scrapy_redisq that a file imports, wherever in it, with their full names."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith("scrapy_redisq."))


def arrows() -> dict[str, set[str]]:
    """Room -> the rooms that it imports."""
    names = {room.rstrip("/"): room for room in rooms()}
    found: dict[str, set[str]] = defaultdict(set)
    for room in names.values():
        for path in files_of(room):
            found[room] |= {names[name.split(".")[1]] for name in imports(path)} - {room}
    return found


def without_implied(all_arrows: Arrows) -> dict[str, set[str]]:
    """Without arrows to where the others lead, too; but those between the nouns are what all is
    about."""

    def reached(room: str) -> set[str]:
        return all_arrows[room].union(*map(reached, all_arrows[room]))

    return {
        room: {
            end
            for end in ends
            if {room, end} <= set(NOUNS) or not any(end in reached(other) for other in ends - {end})
        }
        for room, ends in all_arrows.items()
    }


# Where things are drawn (all lengths in pixels)

WIDTH, MARGIN = 912, 20
ROOM_WIDTH, ROOM_HEIGHT = 206, 72
ROOM_GAP, FLOOR_GAP = 16, 36
STEP = (ROOM_WIDTH + ROOM_GAP) // 2
LANE = 12
"""Between arrows that pass a floor side by side."""

PORT = 22
"""Between arrows that leave a room."""

CROSSING = 200
"""What a crossing of arrows costs: as much as if they were so much longer."""

TOP = 20
LETTERS = 33
"""In a line of what is said of a room."""

Way = list[float]
"""Of an arrow: where it leaves its room, passes each floor in between, and ends."""


@dataclass(frozen=True)
class Box:
    """Where a room is drawn: its left edge, and its floor, counted from the top."""

    x: float
    floor: int

    @property
    def middle(self) -> float:
        return self.x + ROOM_WIDTH / 2

    @property
    def y(self) -> float:
        return top_of(self.floor)


def top_of(floor: int) -> float:
    return TOP + floor * (ROOM_HEIGHT + FLOOR_GAP)


def places(on_floors: Floors, drawn: Arrows) -> dict[str, Box]:
    """The rooms of a floor keep their order, and move sidewards to where arrows are short and cross
    least: one floor after the other, until nothing gets better."""
    slots = range((WIDTH - 2 * MARGIN - ROOM_WIDTH) // STEP + 1)
    options = [
        [choice for choice in combinations(slots, len(floor)) if _apart(choice)]
        for floor in on_floors
    ]
    chosen = [
        min(choices, key=lambda choice: abs(sum(choice) / len(choice) - slots[-1] / 2))
        for choices in options
    ]

    def at(choices: list[tuple[int, ...]]) -> dict[str, Box]:
        return {
            room: Box(MARGIN + slot * STEP, number)
            for number, floor in enumerate(on_floors)
            for room, slot in zip(floor, choices[number], strict=True)
        }

    before: list[tuple[int, ...]] = []
    while chosen != before:
        before = list(chosen)
        for number, choices in enumerate(options):
            tried = [[*chosen[:number], choice, *chosen[number + 1 :]] for choice in choices]
            chosen = min(tried, key=lambda choice: (_cost(at(choice), drawn), choice))
    return at(chosen)


def _apart(slots: tuple[int, ...]) -> bool:
    return all(right - left >= 2 for left, right in pairwise(slots))


def _cost(at: Mapping[str, Box], drawn: Arrows) -> float:
    """How long the arrows are from side to side, and how often they cross."""
    cost = 0.0
    between: dict[int, set[tuple[float, float]]] = defaultdict(set)
    for (room, _), way in ways(at, drawn).items():
        for number, (x, to_x) in enumerate(pairwise(way)):
            between[at[room].floor + number].add((x, to_x))
    for pieces in between.values():
        cost += sum(abs(x - to_x) for x, to_x in pieces)
        for one, other in combinations(pieces, 2):
            if (one[0] - other[0]) * (one[1] - other[1]) < 0:
                cost += CROSSING
    return cost


def ways(at: Mapping[str, Box], drawn: Arrows) -> dict[tuple[str, str], Way]:
    """Each arrow leaves its room at the bottom, passes between the rooms of the floors on its way,
    and ends at the top of the other one. Those that end there together pass together."""
    found: dict[tuple[str, str], Way] = {}
    taken: dict[tuple[int, float], str] = {}
    pairs = [(room, end) for room, ends in drawn.items() for end in ends]
    # The short ones first: they have the better places.
    pairs.sort(key=lambda pair: (at[pair[1]].floor - at[pair[0]].floor, at[pair[0]].x, pair))
    for room, end in pairs:
        x, goal, last = at[room].middle, at[end].middle, at[end].floor
        way: Way = []
        for number in range(at[room].floor + 1, last):
            wanted = x + (goal - x) / (last - number + 1)
            boxes = [box for box in at.values() if box.floor == number]
            x = _free(wanted, boxes, {t: of for (n, t), of in taken.items() if n == number}, end)
            taken[number, x] = end
            way.append(x)
        found[room, end] = [*way, goal]
    for room, ends in drawn.items():
        leaving = sorted(ends, key=lambda end: (found[room, end][0], end))
        spread = min(PORT, ROOM_WIDTH * 0.8 / max(1, len(leaving)))
        for number, end in enumerate(leaving):
            start = at[room].middle + (number - (len(leaving) - 1) / 2) * spread
            found[room, end].insert(0, start)
    return found


def _free(wanted: float, boxes: list[Box], taken: Mapping[float, str], end: str) -> float:
    """The nearest place on a floor where there is no room and no arrow to elsewhere."""
    rooms_there = [(box.x - LANE, box.x + ROOM_WIDTH + LANE) for box in boxes]
    others = [x for x, of in taken.items() if of != end]
    same = [x for x, of in taken.items() if of == end and abs(x - wanted) < ROOM_WIDTH / 2]
    beside = [edge for edges in rooms_there for edge in edges]
    beside += [x + LANE * side for x in others for side in (-1, 1)]
    for x in same or sorted([wanted, *beside], key=lambda x: (abs(x - wanted), x)):
        if (
            LANE <= x <= WIDTH - LANE
            and not any(left < x < right for left, right in rooms_there)
            and not any(abs(x - other) < LANE for other in others)
        ):
            return x
    raise ValueError("no place for an arrow: there are too many")


def path(way: Way, floor: int) -> str:
    """An arrow as SVG draws it, from the bottom of a room on ``floor``."""
    bend = FLOOR_GAP * 0.55
    drawn = f"M{way[0]:g} {top_of(floor) + ROOM_HEIGHT:g}"
    for number, (x, to_x) in enumerate(pairwise(way), floor + 1):
        above = top_of(number) - FLOOR_GAP
        is_last = number == floor + len(way) - 1
        end = top_of(number) - (2 if is_last else 0)
        drawn += f"C{x:g} {above + bend:g} {to_x:g} {end - bend:g} {to_x:g} {end:g}"
        drawn += "" if is_last else f"V{end + ROOM_HEIGHT:g}"
    return drawn


# The picture

LEGEND = "An arrow is an import. Left out are those of rooms that other arrows lead to as well."

STYLE = """
  .card { fill: #f6f8fa; stroke: #d0d7de }
  .room rect { fill: #ffffff; stroke: #afb8c1 }
  .worker rect { fill: #ddf4ff; stroke: #54aeff }
  .control rect { fill: #dafbe1; stroke: #4ac26b }
  .frontier rect { fill: #fff8c5; stroke: #d4a72c }
  .name { font-weight: 600; font-size: 14px; fill: #1f2328 }
  .what { font-size: 10.5px; fill: #57606a }
  .arrow { fill: none; stroke: #6e7781; stroke-width: 1.3 }
  .noun { stroke-width: 2.4 }
  .tip { fill: #6e7781 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d }
    .room rect { fill: #161b22; stroke: #484f58 }
    .worker rect { fill: #0c2d6b; stroke: #388bfd }
    .control rect { fill: #033a16; stroke: #2ea043 }
    .frontier rect { fill: #4b2900; stroke: #bb8009 }
    .name { fill: #e6edf3 }
    .what { fill: #9da7b3 }
    .arrow { stroke: #8b949e }
    .tip { fill: #8b949e }
  }
"""


def picture() -> str:
    """The SVG."""
    on_floors, drawn = floors(), without_implied(arrows())
    at = places(on_floors, drawn)
    height = TOP + len(on_floors) * (ROOM_HEIGHT + FLOOR_GAP) - FLOOR_GAP + 44
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"',
        "     font-family=\"-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\">",
        "  <!-- Drawn by docs/draw.py: make picture -->",
        "  <title>The rooms of scrapy_redisq</title>",
        f"  <desc>{escape(_in_words(on_floors))}</desc>",
        f"  <style>{STYLE}  </style>",
        '  <marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="9" markerHeight="9"',
        '          markerUnits="userSpaceOnUse" orient="auto">',
        '    <path class="tip" d="M0 0 8 4 0 8z"/>',
        "  </marker>",
        f'  <rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *(
            f'  <path class="arrow{_noun(room, end)}" marker-end="url(#tip)" '
            f'd="{path(way, at[room].floor)}"/>'
            for (room, end), way in ways(at, drawn).items()
        ),
        *(line for room, box in at.items() for line in _room(room, box)),
        f'  <text class="what" x="{MARGIN}" y="{height - 16}">{LEGEND}</text>',
        "</svg>",
    ]
    return "\n".join(text) + "\n"


def _noun(*rooms_of_arrow: str) -> str:
    return " noun" if set(rooms_of_arrow) <= set(NOUNS) else ""


def _room(room: str, box: Box) -> Iterator[str]:
    kind = f"room {room.rstrip('/')}" if room in NOUNS else "room"
    lines = textwrap.wrap(_summary(room), LETTERS)
    y = box.y + (ROOM_HEIGHT - 20 - 13 * len(lines)) / 2 + 15
    yield f'  <g class="{kind}" text-anchor="middle">'
    size = f'width="{ROOM_WIDTH}" height="{ROOM_HEIGHT}" rx="6"'
    yield f'    <rect x="{box.x:g}" y="{box.y:g}" {size}/>'
    yield f'    <text class="name" x="{box.middle:g}" y="{y:g}">{room}</text>'
    for number, line in enumerate(lines):
        y_of_line = y + 17 + 13 * number
        yield f'    <text class="what" x="{box.middle:g}" y="{y_of_line:g}">{escape(line)}</text>'
    yield "  </g>"


def _summary(room: str) -> str:
    """The first sentence of the room's docstring, without marks."""
    first = docstring(file_of(room)).split("\n\n")[0].replace("\n", " ")
    return re.sub(r"[`]", "", re.split(r"(?<=\w)\. ", first)[0]).rstrip(".")


def _in_words(on_floors: Floors) -> str:
    words = "; ".join(", ".join(floor) for floor in on_floors)
    return f"Floors from top to bottom, each importing only from lower ones: {words}."


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
