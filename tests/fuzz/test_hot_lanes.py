"""The fuzzers of what the compiled extension appends for many connections, for consumers that give back, and of what it answers to pulls,
small."""

from __future__ import annotations

from fuzz import appended_parts, given_back, pulls
from tests.effort import repeats
from tests.wire.hot.support import needs_native


@needs_native
def test_a_pass_over_many_connections_is_one_after_the_other() -> None:
    """Two thousand rounds in the night; `python -m fuzz.appended_parts` runs more."""
    assert appended_parts.run(seed=0, rounds=repeats(2000)) > repeats(1000)


@needs_native
def test_what_comes_back_goes_to_the_same_level_in_both_modules() -> None:
    """Two thousand rounds in the night; `python -m fuzz.given_back` runs more."""
    assert given_back.run(seed=0, rounds=repeats(2000)) > repeats(500)


@needs_native
def test_pulls_are_answered_by_gates_in_both_modules_alike_and_a_run_as_one_by_one() -> None:
    """A thousand rounds in the night; `python -m fuzz.pulls` runs more."""
    assert pulls.run(seed=0, rounds=repeats(1000)) > repeats(1000)
