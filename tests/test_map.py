"""docs/map.svg, held against the sources: packages, rooms and imports exactly, sizes roughly. `make map` draws it anew."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT
from tools import map as maps

# With the rules of the layers, which look at the same trees of all modules.
pytestmark = pytest.mark.xdist_group("layers")
AGAIN = "the map is of another day: make map"


@pytest.fixture(scope="module")
def now() -> dict[str, maps.Package]:
    return maps.house()


@pytest.fixture(scope="module")
def drawn() -> dict[str, maps.Package]:
    return maps.drawn((ROOT / "docs" / "map.svg").read_text())


def test_the_map_has_the_packages_and_their_rooms(now, drawn) -> None:
    """A folder that is made, renamed or gone is on the map, or the map is drawn anew."""
    assert {name: set(package.rooms) for name, package in drawn.items()} == {
        name: set(package.rooms) for name, package in now.items()
    }, AGAIN


def test_the_map_says_who_imports_whom(now, drawn) -> None:
    assert {name: package.imports for name, package in drawn.items()} == {
        name: package.imports for name, package in now.items()
    }, AGAIN


def test_the_sizes_on_the_map_are_about_right(now, drawn) -> None:
    """Not to the line, or each change would draw it anew."""
    off = {
        name: (drawn[name].lines, package.lines)
        for name, package in now.items()
        if abs(drawn[name].lines - package.lines) > max(200, 0.2 * package.lines)
    }
    assert not off, AGAIN


def test_each_package_stands_above_what_it_imports(now) -> None:
    floors = maps.floors(now)
    height = {name: -number for number, floor in enumerate(floors) for name in floor}
    assert set(height) == set(now)
    assert all(height[name] > height[target] for name, package in now.items() for target in package.imports)


def test_an_arrow_is_left_out_only_where_another_way_leads(now) -> None:
    shown = maps.arrows(now)

    def reached(name: str) -> set[str]:
        found = {target for source, target in shown if source == name}
        return found.union(*map(reached, found))

    for name, package in now.items():
        assert set(package.imports) <= reached(name)


def test_the_architecture_page_names_files_that_are_there() -> None:
    """Its paths lead a new developer through the sources; a file that moved takes its mention along."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z0-9_]+/[a-z0-9_/]+\.py)`", text))
    assert len(named) > 50
    assert {
        path for path in named if not (ROOT / "src/metaq" / path).is_file() and not (ROOT / path).is_file()
    } == set()
