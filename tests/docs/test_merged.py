"""What a merge leaves between two texts is in none of the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md")])
_LEFT = re.compile(r"^(<{7} |>{7} |={7}$)", re.MULTILINE)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_document_holds_the_marks_of_a_merge(path):
    assert not _LEFT.search(path.read_text(encoding="utf-8"))
