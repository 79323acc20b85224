"""README.zh-CN.md says what README.md says: its programs, commands and figures are the same, and its links lead somewhere."""

from __future__ import annotations

import re

from tests.support import ROOT

ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def tables(text: str) -> list[list[str]]:
    """The numbers of each row, table by table."""
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[" ".join(sorted(NUMBER.findall(row))) for row in table.splitlines()] for table in found]


def test_its_programs_and_commands_are_those_of_the_english_page():
    assert BLOCK.findall(CHINESE) == BLOCK.findall(ENGLISH)


def test_it_has_the_sections_of_the_english_page():
    english, chinese = (re.findall(r"^#+", BLOCK.sub("", text), re.MULTILINE) for text in (ENGLISH, CHINESE))
    assert chinese == english


def test_its_tables_have_the_same_rows_and_figures():
    english, chinese = tables(ENGLISH), tables(CHINESE)
    assert len(english) == len(chinese) == 3
    # What one language has in words, as "two runs", the other one may have in digits: the texts around tables are not compared.
    assert english == chinese


def test_its_links_lead_somewhere():
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", CHINESE)]
    assert len(links) > 30
    assert [link for link in links if not (ROOT / link).exists()] == []
    english = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", ENGLISH)}
    assert english - {"README.zh-CN.md"} <= set(links)
    assert "(README.zh-CN.md)" in ENGLISH
    assert "(README.md)" in CHINESE
