"""tests/quarantine.txt names what is unsteady, with reasons, and may only become shorter."""

from __future__ import annotations

import pytest

from tests.conftest import QUARANTINE, _skip_quarantined, quarantined
from tests.support import ROOT

MOST = 0
"""So many tests are in quarantine at most: lower it with each that is mended, never raise it."""


def test_the_list_only_becomes_shorter():
    """Whoever wants to add a test mends one."""
    assert len(quarantined(QUARANTINE.read_text())) <= MOST


def test_every_quarantined_test_exists():
    """What is renamed or removed leaves the list."""
    for name in quarantined(QUARANTINE.read_text()):
        path, _, test = name.partition("::")
        assert f"def {test.rpartition('::')[2].partition('[')[0]}(" in (ROOT / path).read_text(), name


def test_a_line_needs_a_reason():
    """Without a reason nobody could mend it."""
    assert quarantined("# why\n\ntests/a.py::test_b[1] # a port # is taken\n") == {
        "tests/a.py::test_b[1]": "a port # is taken"
    }
    with pytest.raises(pytest.UsageError, match="no reason"):
        quarantined("tests/a.py::test_b\n")


class Item:
    """What the collection hook needs of a test."""

    def __init__(self, nodeid):
        self.nodeid, self.markers = nodeid, []

    def add_marker(self, marker):
        self.markers.append(marker.name)


@pytest.mark.parametrize(("asked", "skipped"), [("", ["skip"]), ("run", [])])
def test_the_nightly_run_alone_runs_them(monkeypatch, tmp_path, asked, skipped):
    """A name without parameters means all of them."""
    listed = tmp_path / "quarantine.txt"
    listed.write_text("tests/a.py::test_b # slow disk\n")
    monkeypatch.setattr("tests.conftest.QUARANTINE", listed)
    monkeypatch.setenv("METAQ_QUARANTINE", asked)
    one, other = Item("tests/a.py::test_b[x]"), Item("tests/a.py::test_bc")
    _skip_quarantined([one, other])
    assert (one.markers, other.markers) == (skipped, [])
