"""docs/which_generation.md: what its table leads to is there."""

from __future__ import annotations

import re

import pytest

from metaq.metaq1 import ConsumerConfig, MetaClientConfig
from metaq.options import StoreOptions
from tests.support import ROOT

PAGE = (ROOT / "docs" / "which_generation.md").read_text()
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]


def test_every_row_leads_to_a_page_or_a_test():
    assert len(ROWS) > 25
    for what, *_, more in ROWS:
        assert re.search(r"\]\(|`(tests|examples)/", more), what


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_a_link_leads_somewhere(target):
    """To a page, and to a heading of it."""
    path, _, heading = target.partition("#")
    page = ROOT / "docs" / path
    assert page.is_file()
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    assert not heading or heading in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|examples)/[^`]+)`", PAGE))))
def test_a_file_that_is_named_is_there(path):
    assert (ROOT / path).is_file()


def test_numbers_of_the_page_are_true():
    assert StoreOptions().max_message_size == 4 << 20
    assert MetaClientConfig(server_url="meta://h").max_message_bytes == 1 << 20
    assert "body up to 4 MiB" in PAGE
    assert "body up to 1 MiB" in PAGE
    levels = StoreOptions().message_delay_level.split()
    assert f"| {len(levels)} levels |" in PAGE
    assert f"after {ConsumerConfig('g').max_fetch_retries} retries" in PAGE
