"""Schedules of a master and a slave from seeds: what was acknowledged holds, whoever is killed, sleeps, loses power or room.

A failing seed is told with the command that repeats it.
"""

from __future__ import annotations

import os

import pytest

from tests.crash.pair_ledger import Broken, Course, Report, Wanted, run_seeds
from tests.crash.pair_ledger.broker import EARLY
from tests.crash.pair_ledger.ledger import LiveConsumer

SEEDS, ROUNDS = 10, 2
AT_ONCE, IN_A_TEST = 3, 5
FIRST_ALL = int(os.environ.get("METAQ_PAIRS_FROM", SEEDS + 1))
"""`make nightly` sets it by the day: each night has other schedules."""
SEEDS_ALL, IN_A_TEST_ALL = 200, 25
MODES = ("sync", "async")


def failures(first: int, count: int, wanted: Wanted) -> list[str]:
    """What the failing ones of so many seeds tell."""
    ended = list(run_seeds(range(first, first + count), wanted, AT_ONCE))
    assert sum(one.acked for one in ended if isinstance(one, Report)) > 0 or any(
        isinstance(one, Broken) for one in ended
    )
    return [str(one) for one in ended if isinstance(one, Broken)]


@pytest.mark.all
@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, IN_A_TEST))
def test_what_a_pair_has_acknowledged_is_there_or_told_as_lost(mode, first):
    """Short schedules, the same ones each time."""
    told = failures(first, IN_A_TEST, Wanted(mode, ROUNDS))
    assert not told, "\n".join(told)


@pytest.mark.all
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", range(FIRST_ALL, FIRST_ALL + SEEDS_ALL, IN_A_TEST_ALL))
def test_what_a_pair_has_acknowledged_is_there_after_many_more(mode, first):
    """Longer ones."""
    told = failures(first, IN_A_TEST_ALL, Wanted(mode))
    assert not told, "\n".join(told)


class ForcedWithSlowCopies(Course):
    """A slave leads by force that lacks what its master has taken last."""

    def live(self) -> None:
        for side in self.pair.sides:
            side.copies.delay(0.5)
        self.load.pass_sends(100, 1.0)
        leader = self.leader()
        leader.kill()
        assert self.force(self.pair.other(leader))
        for side in self.pair.sides:
            side.copies.delay(0)
        leader.start()


@pytest.mark.all
@pytest.mark.long
def test_an_acknowledgement_that_comes_too_early_is_found(tmp_path, monkeypatch):
    """The ledger can fail: by a master that does not wait for its slave, and only by that."""
    ForcedWithSlowCopies(1, Wanted("sync"), tmp_path / "right", (LiveConsumer,)).run()
    monkeypatch.setenv(EARLY, "1")
    with pytest.raises(Broken, match="lost that may not be"):
        ForcedWithSlowCopies(1, Wanted("sync"), tmp_path / "early", (LiveConsumer,)).run()
