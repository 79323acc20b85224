"""The fuzzers of what the hot module appends for many connections, and for consumers that give back, small."""

from __future__ import annotations

from fuzz import appended_parts, given_back
from tests.wire.hot_support import needs_native


@needs_native
def test_a_pass_over_many_connections_is_one_after_the_other() -> None:
    """Two thousand rounds; `python -m fuzz.appended_parts` runs more."""
    assert appended_parts.run(seed=0, rounds=2000) > 1000


@needs_native
def test_what_comes_back_goes_to_the_same_level_in_both_modules() -> None:
    """Two thousand rounds; `python -m fuzz.given_back` runs more."""
    assert given_back.run(seed=0, rounds=2000) > 500
