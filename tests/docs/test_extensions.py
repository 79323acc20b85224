"""The register of what we add to RocketMQ's protocol and files has everything that the code has."""

from __future__ import annotations

import re
from enum import IntEnum

import pytest

from metaq.model.topics import system
from metaq.wire import extensions
from metaq.wire.codes import RequestCode, ResponseCode
from tests.support import ROOT

FORMATS = ROOT / "docs" / "formats"
PAGE = (FORMATS / "extensions.md").read_text()
OURS = range(30_000, 30_100)


@pytest.mark.parametrize("codes", [RequestCode, ResponseCode])
def test_each_code_has_its_row(codes: type[IntEnum]) -> None:
    ours = {f"{code.value} {code.name}" for code in codes if code.value in OURS}
    assert ours
    rows = set(re.findall(r"^\| (30\d{3} [A-Z_]+) \|", PAGE, re.MULTILINE))
    assert ours <= rows


def test_no_row_names_a_code_that_is_not_there() -> None:
    known = {f"{code.value} {code.name}" for codes in (RequestCode, ResponseCode) for code in codes}
    assert set(re.findall(r"^\| (30\d{3} [A-Z_]+) \|", PAGE, re.MULTILINE)) <= known


def test_each_field_and_mark_is_named() -> None:
    """The constants of metaq.wire.extensions: names of fields and what stands in them."""
    texts = {value for name, value in vars(extensions).items() if name.isupper() and isinstance(value, str)}
    assert len(texts) > 8
    assert {text for text in texts if f"`{text}" not in PAGE} == set()


def test_each_system_topic_of_ours_is_named() -> None:
    topics = {
        value for value in vars(system).values() if isinstance(value, str) and re.match(r"(?i)rmq_sys_metaq_\w", value)
    }
    assert len(topics) >= 4
    assert {topic for topic in topics if f"`{topic}`" not in PAGE} == set()


def test_each_file_of_ours_is_in_the_folder_of_the_page() -> None:
    """`config/metaq*.json`, wherever the code names one."""
    named = {
        name
        for path in (ROOT / "src/metaq").rglob("*.py")
        for name in re.findall(r"\"(metaq[A-Z][A-Za-z0-9]*\.json)\"", path.read_text())
    }
    assert len(named) >= 8
    tree = (FORMATS / "store-folder.md").read_text()
    assert {name for name in named if name not in tree} == set()


def test_the_page_says_at_which_level_each_extension_came() -> None:
    assert f"The level is {extensions.LEVEL}." in PAGE
    brought = PAGE[PAGE.index("The level is ") :].partition("Code:")[0]
    for level, what in (
        (extensions.KEEPING_LEVEL, "brought `metaqKeepSeconds`"),
        (extensions.STAGING_LEVEL, "staged transactions"),
        (extensions.LARGE_CHUNKS_LEVEL, "chunks above 1 MiB"),
    ):
        assert re.search(rf"[Ll]evel {level} {what}", brought)
