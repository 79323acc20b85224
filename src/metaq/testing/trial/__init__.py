"""Trials: a cluster under load and faults, run by seed and judged (docs/testing.md).

result = run_trial(Trial("sync", seconds=20), seed=7)
assert result.ok, result.text
"""

from metaq.testing.trial.modes import MODES, NIGHTLY, Mode, mode_of
from metaq.testing.trial.running import Trial, TrialResult, judge_again, run_trial, run_trials

__all__ = [
    "MODES",
    "NIGHTLY",
    "Mode",
    "Trial",
    "TrialResult",
    "judge_again",
    "mode_of",
    "run_trial",
    "run_trials",
]
