"""docs/where-the-time-goes.md: its commands are there, its paths are those that can be drawn, its pictures are small."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT

PAGE = ROOT / "docs" / "where-the-time-goes.md"
TEXT = PAGE.read_text()
PICTURE_BYTES = 100_000


@pytest.fixture
def ways(monkeypatch):
    """Key → way."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import flame

    return {way.key: way for way in flame.WAYS}


def test_its_commands_are_there(ways, monkeypatch):
    """Make knows the targets, they take those paths and rows, and the scripts exist."""
    import rows

    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", TEXT, re.MULTILINE)) <= targets
    assert set(re.findall(r"ROW=([\w-]+)", TEXT)) <= set(ways)
    named = {key for keys in re.findall(r"--rows ([\w,-]+)", TEXT) for key in keys.split(",")}
    assert named <= {row.key for row in rows.ROWS}
    scripts = re.findall(r"python (bench/\w+\.py)((?: --[\w-]+(?: [\w/]+)?)*)", TEXT)
    assert len(scripts) >= 4
    for script, flags in scripts:
        source = (ROOT / script).read_text()
        assert all(f'"{flag}"' in source for flag in re.findall(r"--[\w-]+", flags)), script


def test_each_path_has_its_line_and_its_picture(ways):
    """And no picture is of a path that is gone."""
    for way in ways.values():
        assert f"| {way.work} |" in TEXT, way.key
    drawn = re.findall(r"\]\(flames/([\w-]+)\.svg\)", TEXT)
    assert sorted(drawn) == sorted(ways)
    assert sorted(path.stem for path in (ROOT / "docs" / "flames").iterdir()) == sorted(ways)


def test_pictures_are_small():
    """They are in the repository."""
    for path in (ROOT / "docs" / "flames").iterdir():
        assert 1000 < path.stat().st_size < PICTURE_BYTES, path
        assert path.read_text().startswith("<svg "), path
