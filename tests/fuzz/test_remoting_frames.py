"""The remoting fuzzer, small."""

from __future__ import annotations

from fuzz.remoting_frames import run


def test_damaged_requests_harm_their_own_connection_alone() -> None:
    """Two thousand rounds; `python fuzz/remoting_frames.py` runs more."""
    assert 0 < run(seed=0, rounds=2000) < 2000
