"""Trials by seed, in every mode whose brokers are there: nothing that was acknowledged is lost, whatever the nemesis does.

A failing seed is told with its report, its schedule, and the command that repeats it.
"""

from __future__ import annotations

import os

import pytest

from metaq.testing.faketime import find_faketime
from metaq.testing.trial import NIGHTLY, Trial, mode_of, run_trials
from metaq.testing.workload import Load
from tests.support import PATIENCE

SHORT = 10
"""Runs of CI, of all modes together: they have a minute."""
SHORT_SECONDS, SECONDS = 2.0, 12.0
SHORT_PATIENCE = 10.0
"""For what does not come: a group that has passed over messages which were lost and written anew."""
AT_ONCE = 4
"""Most of a run is waiting."""
FIRST_ALL = int(os.environ.get("METAQ_TRIALS_FROM", SHORT + 1))
"""`make nightly` sets it by the day: each night has other schedules."""
SEEDS_ALL, IN_A_TEST_ALL = 500, 25


def trial_of(mode: str, seconds: float) -> Trial:
    """With every kind of fault that the mode's promises hold under, jumps of clocks among them where libfaketime is installed."""
    clocks = ("clock",) if find_faketime() is not None else ()
    return Trial(mode, faults=(*mode_of(mode).faults, *clocks), seconds=seconds, patience=PATIENCE)


def failures(trial: Trial, first: int, count: int) -> list[str]:
    """The reports of the failing ones of so many seeds."""
    results = list(run_trials(trial, range(first, first + count), AT_ONCE))
    assert sum(result.verdict.counts.get("acked", 0) for result in results) > 0
    return [result.text for result in results if not result.ok]


@pytest.mark.all
@pytest.mark.long
@pytest.mark.parametrize("mode", NIGHTLY)
def test_short_trials_find_nothing(mode):
    """The same ones each time."""
    told = failures(trial_of(mode, SHORT_SECONDS), 1, max(1, SHORT // len(NIGHTLY)))
    assert not told, "\n".join(told)


@pytest.mark.all
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", NIGHTLY)
@pytest.mark.parametrize("first", range(FIRST_ALL, FIRST_ALL + SEEDS_ALL, IN_A_TEST_ALL))
def test_many_more_trials_find_nothing(mode, first):
    """Longer ones."""
    told = failures(trial_of(mode, SECONDS), first, IN_A_TEST_ALL)
    assert not told, "\n".join(told)


@pytest.mark.all
@pytest.mark.long
def test_a_broker_that_acknowledges_too_early_is_found(tmp_path):
    """With ASYNC_FLUSH a power cut takes what was acknowledged, and the mode `single` promises that it does not."""
    trial = Trial(
        "single", faults=("power",), seconds=SHORT_SECONDS, patience=SHORT_PATIENCE, load=Load(("sync", "submit"), rate=200.0),
        options={"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": 10_000},
    )  # fmt: skip
    # A cut may leave what it could have taken, and on a slow machine there is little: so many, until one of them shows it.
    results = run_trials(trial, range(4, 104), AT_ONCE, tmp_path)
    lost = next(
        (one for one in results if "acked is kept" in {violation.check for violation in one.verdict.violations}), None
    )
    results.close()
    assert lost is not None
    assert f"--mode single --seeds {lost.seed} --seconds {SHORT_SECONDS:g} --faults power" in lost.text
    assert "power process 0" in lost.text
