"""The map of the house: packages with their rooms and sizes, and who imports whom, as an SVG.

    python -m tools.map > docs/map.svg          # make map

A package stands below all that import it. An arrow is left out where another way leads there; the box's tooltip has all of
them. `tests/test_map.py` holds the committed picture against the sources.
"""

from __future__ import annotations

import collections
import graphlib
import html
import json
import pathlib
import re
from typing import NamedTuple

from tools.imports import MODULES, SOURCE, imported_of_ours, inside

GROUND = "the ground"
"""The modules beside the packages that every layer stands on: errors, clock, logging, options."""
FACADES = ("", "aio", "spark", "spark.pipelines")
"""Modules that only hand out names to users. They belong to `metaq`, wherever they lie."""
NATIVE = (".pyx", ".pxi", ".h")

BOX, GAP, MARGIN, LINE, ROW = 212, 26, 24, 17, 74
"""Pixels: width of a box, between boxes, around the picture, of a line of text, between floors."""
PER_FLOOR = 5


class Package(NamedTuple):
    """What the map says of one package."""

    lines: int
    rooms: dict[str, int]
    """Folder → its lines. Files beside the folders count for the package alone."""
    imports: list[str]
    """The packages whose modules its modules import, in the order of the alphabet."""


def package_of(module: str) -> str:
    """The package on the map that a module, without its `metaq.`, belongs to."""
    if module in FACADES:
        return "metaq"
    name = "cli" if module == "__main__" else module.split(".", maxsplit=1)[0]
    return name if (SOURCE / "metaq" / name).is_dir() else GROUND


def house() -> dict[str, Package]:
    """The packages as the sources have them now."""
    lines: collections.Counter[str] = collections.Counter()
    rooms: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    targets: dict[str, set[str]] = collections.defaultdict(set)
    for name, path in MODULES.items():
        module = inside(name)
        package = package_of(module)
        _count(path, package, lines, rooms)
        targets[package] |= {package_of(target) for target in imported_of_ours(name)} - {package}
    for path in (SOURCE / "metaq").rglob("*"):
        if path.suffix in NATIVE:
            _count(path, path.relative_to(SOURCE / "metaq").parts[0], lines, rooms)
    return {
        name: Package(lines[name], dict(sorted(rooms[name].items())), sorted(targets[name])) for name in sorted(lines)
    }


def _count(
    path: pathlib.Path, package: str, lines: collections.Counter[str], rooms: dict[str, collections.Counter[str]]
) -> None:
    count = len(path.read_text().splitlines())
    lines[package] += count
    parts = path.relative_to(SOURCE / "metaq").parts
    if len(parts) > 2 and parts[0] == package:
        rooms[package][parts[1]] += count


def floors(packages: dict[str, Package]) -> list[list[str]]:
    """The packages from the top floor to the ground: each above all that it imports, as low as it can be."""
    height: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(
        {name: package.imports for name, package in packages.items()}
    ).static_order():
        height[name] = 1 + max((height[target] for target in packages[name].imports), default=-1)
    top = max(height.values())
    return [sorted(name for name in packages if height[name] == floor) for floor in range(top, -1, -1)]


def arrows(packages: dict[str, Package]) -> list[tuple[str, str]]:
    """The imports that no other way implies."""

    def reach(name: str) -> set[str]:
        found: set[str] = set()
        for target in packages[name].imports:
            found |= {target} | reach(target)
        return found

    return [
        (name, target)
        for name, package in packages.items()
        for target in package.imports
        if not any(target in reach(other) for other in package.imports)
    ]


def picture(packages: dict[str, Package]) -> str:
    """The SVG. Its `metadata` holds what it shows, as JSON."""
    rows = [floor[i : i + PER_FLOOR] for floor in floors(packages) for i in range(0, len(floor), PER_FLOOR)]
    width = 2 * MARGIN + PER_FLOOR * BOX + (PER_FLOOR - 1) * GAP
    boxes: dict[str, tuple[float, float, float]] = {}
    y = float(MARGIN)
    for row in rows:
        left = (width - len(row) * BOX - (len(row) - 1) * GAP) / 2
        tall = {name: LINE * (2 + len(packages[name].rooms)) for name in row}
        for place, name in enumerate(row):
            boxes[name] = (left + place * (BOX + GAP), y, tall[name])
        y += max(tall.values()) + ROW
    height = y - ROW + MARGIN
    data = html.escape(json.dumps({name: package._asdict() for name, package in packages.items()}), quote=False)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" font-family="sans-serif" font-size="12">',
        f"<metadata>{data}</metadata>",
        "<title>The packages of MetaQ: each stands above what it imports</title>",
        (
            '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="6" refY="3" orient="auto">'
            '<path d="M0,0 L6,3 L0,6 z" fill="#7a8aa0"/></marker></defs>'
        ),
        f'<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>',
        *(_arrow(boxes[name], boxes[target]) for name, target in arrows(packages)),
        *(_box(name, packages[name], *boxes[name]) for name in boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _arrow(above: tuple[float, float, float], below: tuple[float, float, float]) -> str:
    x1, y1 = above[0] + BOX / 2, above[1] + above[2]
    x2, y2 = below[0] + BOX / 2, below[1] - 2
    bend = (y2 - y1) / 2
    path = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"
    return f'<path d="{path}" fill="none" stroke="#7a8aa0" stroke-width="1.2" marker-end="url(#tip)"/>'


def _size(lines: int) -> str:
    return f"{lines / 1000:.1f}k" if lines >= 1000 else str(lines)


def _box(name: str, package: Package, x: float, y: float, tall: float) -> str:
    fill = "#eef3fa" if package.rooms else "#f7f7f4"
    texts = [
        f'<text x="{x + 10:.0f}" y="{y + LINE * (place + 2.3):.1f}" fill="#44546a">{html.escape(room)}'
        f'<tspan x="{x + BOX - 10:.0f}" text-anchor="end" fill="#8a97a8">{_size(lines)}</tspan></text>'
        for place, (room, lines) in enumerate(package.rooms.items())
    ]
    return "\n".join(
        [
            f"<g><title>{html.escape(name)} imports {', '.join(package.imports) or 'nothing of ours'}</title>",
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{tall:.0f}" rx="4" fill="{fill}" stroke="#5b7399"/>',
            (
                f'<text x="{x + 10:.0f}" y="{y + 15:.0f}" font-weight="bold" fill="#1f2d3d">{html.escape(name)}'
                f'<tspan x="{x + BOX - 10:.0f}" text-anchor="end" font-weight="normal">{_size(package.lines)}</tspan></text>'
            ),
            *texts,
            "</g>",
        ]
    )


def drawn(svg: str) -> dict[str, Package]:
    """What a picture shows. Raises ValueError: it is none of this module's."""
    found = re.search(r"<metadata>(.*?)</metadata>", svg, re.DOTALL)
    if found is None:
        raise ValueError("the picture has no metadata: draw it with `make map`")
    return {name: Package(**package) for name, package in json.loads(html.unescape(found[1])).items()}


if __name__ == "__main__":
    print(picture(house()), end="")
