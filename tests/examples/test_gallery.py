"""The gallery's pages and pictures: each system has its program, its command and its picture, which can be seen on any page."""

from __future__ import annotations

import re

import pytest

from tests.examples.gallery import GALLERY, PICTURE_BYTES_MAX, loaded
from tests.support import ROOT

SECTIONS = re.findall(
    r"^### (.*?)\n(.*?)(?=^##)", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(("title", "text"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_each_has_program_command_and_picture(title, text):
    """All that is linked is there, the commands name programs that are, and the picture has a text in its place."""
    links = re.findall(r"\]\((gallery/[^)#]+)\)", text)
    assert links
    for link in links:
        assert (ROOT / "examples" / link).is_file(), link
    programs = re.findall(r"^python (examples/\S+\.py)", text, re.MULTILINE)
    assert programs
    for program in programs:
        assert (ROOT / program).is_file(), program
    [(instead, picture)] = re.findall(r"!\[([^\]]+)\]\((\S+\.svg)\)", text)
    assert len(instead) > 20
    assert f"({picture.removesuffix('.svg')}.py)" in text


def test_pictures_are_small_and_all_shown():
    shown = {name for _, text in SECTIONS for name in re.findall(r"gallery/(\w+\.svg)", text)}
    assert len(SECTIONS) == 4
    assert shown == {path.name for path in GALLERY.glob("*.svg")}
    for path in GALLERY.glob("*.svg"):
        assert len(path.read_bytes()) < PICTURE_BYTES_MAX, path.name
        assert 'width="648pt"' in path.read_text(), path.name


def luminance(colour):
    """Of `#rrggbb`, as https://www.w3.org/TR/WCAG21/#dfn-relative-luminance has it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_can_be_seen_on_light_and_dark_pages(monkeypatch):
    """3 is what lines and large text need; a page is white, or as dark as GitHub's."""
    picture = loaded("picture", monkeypatch)
    for page in ("#ffffff", "#0d1117"):
        for colour in (picture.INK, *picture.COLOURS):
            darker, lighter = sorted([luminance(page), luminance(colour)])
            assert (lighter + 0.05) / (darker + 0.05) >= 3, (colour, page)
    painted = {
        colour
        for path in GALLERY.glob("*.svg")
        for colour in re.findall(r"(?:fill|stroke): (#\w{6})", path.read_text())
    }
    assert painted <= {picture.INK, *picture.COLOURS}
