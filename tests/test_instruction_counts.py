"""The compiled extension's paths take no more instructions than the committed baseline says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ROOT, WHOLE_PATIENCE, environment


def test_more_than_three_percent_is_too_much():
    """And so is a path that the baseline does not know; what takes less is to be recorded."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from instruction_counts import compared
    finally:
        sys.path.pop(0)
    lines, worse = compared(
        {"same": 1000, "more": 1000, "less": 1000}, {"same": 1029, "more": 1031, "less": 969, "new": 1}
    )
    assert worse == ["more", "new"]
    assert [line.rpartition("%")[2].strip() for line in lines[:3]] == ["", "MORE", "less: record it"]


@pytest.mark.long
@pytest.mark.all
def test_no_hot_path_takes_three_percent_more_instructions():
    """After a change that is meant: `python bench/instruction_counts.py --record`."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "instruction_counts.py")],
        env=environment(), capture_output=True, text=True, timeout=WHOLE_PATIENCE,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
