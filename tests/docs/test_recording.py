"""tools/recording.py: the picture of a session in a terminal, and the one that is committed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from tests.support import ROOT
from tools import recording

SVG = "{http://www.w3.org/2000/svg}"


def lines_of(svg: str) -> dict[int, tuple[float, str]]:
    """Line of the screen → seconds after which it appears, and its text."""
    found: dict[int, tuple[float, str]] = {}
    for element in ET.fromstring(svg).iter(f"{SVG}text"):
        if (number := re.search(r"recording-line-(\d+)", element.get("clip-path", ""))) is None:
            continue
        delay = float(element.get("style", "").removeprefix("animation-delay:").removesuffix("s"))
        before = found.get(int(number[1]), (delay, ""))[1]
        found[int(number[1])] = delay, before + "".join(element.itertext()).replace("\xa0", " ")
    return found


def test_lines_appear_as_they_were_printed():
    session = [("metaq up", "ready\n", 2.0), ("metaq send orders x", "one\ntwo\n", 0.25)]
    lines = lines_of(recording.drawn(session))
    assert [text.strip() for _, text in lines.values()] == [
        "$ metaq up &", "ready", "$ metaq send orders x", "one", "two",
    ]  # fmt: skip
    pause = recording.TYPING_SECONDS
    assert [at for at, _ in lines.values()] == [0.5, 2.5, 2.5 + pause, 2.75 + pause, 2.75 + pause]


def test_the_committed_picture_shows_the_commands_and_fetches_nothing():
    svg = (ROOT / "docs" / "recording.svg").read_text()
    shown = [text.strip().removesuffix(" &") for _, text in lines_of(svg).values() if text.startswith("$ ")]
    assert shown == [f"$ {command}" for command in recording.COMMANDS]
    assert "url(http" not in svg
    assert "@import" not in svg
