"""The configuration page is made from the option tables."""

from __future__ import annotations

from metaq.app.reference import markdown
from tests.support import ROOT


def test_configuration_page_is_up_to_date():
    """docs/configuration.md is what the code says now; `make docs` writes it."""
    assert (ROOT / "docs" / "configuration.md").read_text() == markdown()
