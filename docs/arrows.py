"""Draws which room of the code imports which, from the source: `python docs/arrows.py` writes docs/pictures/rooms.svg.

Rooms stand in their order, which tests/test_rooms.py enforces: arrows only point down. An arrow is dark where it is
needed to tell who stands above whom, and pale where a longer way says the same.
"""

import ast
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_rooms import ROOMS, SOURCE, imported_names  # noqa: E402

PICTURE = ROOT / "docs" / "pictures" / "rooms.svg"
LEFT, TOP, WIDTH, HEIGHT, STEP = 10, 10, 560, 26, 36
MOST_LETTERS = 68
Arrow = tuple[str, str]


def arrows() -> dict[Arrow, int]:
    """(room, room that it imports), and how many of its files do."""
    found: dict[Arrow, int] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        package = ".".join(["semisight", *parts[:-1]])
        names = (name.split(".") for _, name in imported_names(ast.parse(file.read_text(encoding="utf-8")), package))
        rooms = {name[1] for name in names if name[0] == "semisight" and len(name) > 1 and name[1] in ROOMS}
        for room in rooms - {parts[0]} if parts[0] in ROOMS else ():
            found[parts[0], room] = found.get((parts[0], room), 0) + 1
    return found


def needed(found: dict[Arrow, int]) -> set[Arrow]:
    """The arrows that no way over other rooms stands for."""
    below: dict[str, set[str]] = {}
    for room in reversed(ROOMS):
        direct = {to for start, to in found if start == room}
        below[room] = direct.union(*(below.get(to, set()) for to in direct))
    return {(a, b) for a, b in found if not any(b in below[c] for start, c in found if start == a and c != b)}


def purpose(room: str) -> str:
    """The first sentence that a room says of itself."""
    folder, file = SOURCE / room / "__init__.py", SOURCE / f"{room}.py"
    text = ast.get_docstring(ast.parse((folder if folder.exists() else file).read_text(encoding="utf-8"))) or ""
    line = " ".join(text.split("\n\n")[0].replace("`", "").split()).rstrip(".")
    return line if len(line) <= MOST_LETTERS else line[: MOST_LETTERS - 2].rsplit(" ", 1)[0] + " …"


def svg() -> str:
    rooms = [room for room in ROOMS if (SOURCE / room).is_dir() or (SOURCE / f"{room}.py").exists()]
    found = arrows()
    dark = needed(found)
    middle = {room: TOP + STEP * i + HEIGHT / 2 for i, room in enumerate(rooms)}
    right = LEFT + WIDTH
    reach = 25 + 15 * len(rooms)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + reach} {TOP + STEP * len(rooms)}" '
        'font-family="sans-serif" font-size="12">',
        "<title>Which room imports which</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for a, b in sorted(found, key=lambda arrow: (arrow in dark, arrow)):
        start, end = middle[a] + 4, middle[b] - 4
        bow = right + 20 + 20 * abs(rooms.index(b) - rooms.index(a))  # a cubic reaches three quarters of this
        colour, width = ("#37474f", 1.6) if (a, b) in dark else ("#cfd8dc", 1)
        colour = colour if end > start else "#c62828"  # up: tests/test_rooms.py fails
        lines += [
            f'<g stroke="{colour}" stroke-width="{width}" fill="none">'
            f"<title>{a} imports {b} ({found[a, b]} files)</title>"
            f'<path d="M{right} {start:g}C{bow} {start:g} {bow} {end:g} {right + 7} {end:g}"/>'
            f'<path fill="{colour}" stroke="none" d="M{right} {end:g}l8 -3.5v7z"/></g>'
        ]
    for room in rooms:
        y = middle[room]
        lines += [
            f'<rect x="{LEFT}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
            'fill="#e8eaf6" stroke="#5c6bc0"/>',
            f'<text x="{LEFT + 10}" y="{y + 4:g}" font-weight="bold" fill="#1a237e">{room}</text>',
            f'<text x="{LEFT + 108}" y="{y + 4:g}" fill="#37474f">{escape(purpose(room))}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
