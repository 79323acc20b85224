"""The fuzzer of the MetaQ 1.x server, small."""

from __future__ import annotations

from fuzz.metaq1_commands import run


def test_damaged_lines_harm_their_own_connection_alone() -> None:
    """A thousand rounds; `python fuzz/metaq1_commands.py` runs more."""
    assert 0 < run(seed=0, rounds=1000) < 1000
