"""Driver, workers and broker are killed -9 through many messages: the archive and the copies hold what was acknowledged, once.

A seed's strikes are at parts of all messages and at edges of batches, and so are its batches: with a tenth of the messages a
seed kills the same victims at the same moments, over as many batches, and log and queue files of the brokers still roll over.
What a million adds, longer batches and a larger window of ids, is `make test-proof`, in `make nightly` with more seeds:
`make test-proof SEEDS=100`.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.spark.proof.plan import ACKNOWLEDGED, DELIVERED, DRIVER, SEEDS_OF_CI, Strike, plan_of
from tests.spark.proof.run import Broken, Run, run_seed

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.all, pytest.mark.spark_all]
MESSAGES = 100_000


@pytest.mark.parametrize("seed", SEEDS_OF_CI)
def test_what_was_acknowledged_is_archived_and_copied_once(seed, tmp_path):
    report = run_seed(plan_of(seed, MESSAGES), tmp_path / f"seed-{seed}", print)
    assert (
        MESSAGES <= report.acked < report.stored == report.archived + report.repeats == report.copied
    )  # Answers were lost.
    assert sum(report.kills.values()) > len(report.plan.strikes) // 2


def test_a_sink_that_promises_less_is_found_out(tmp_path):
    """With delivery=at-least-once a driver that dies in the middle of a batch writes it again: the comparison must say so."""
    strikes = tuple(Strike(part, ACKNOWLEDGED, DELIVERED, (DRIVER,)) for part in (0.2, 0.5))
    plan = dataclasses.replace(
        plan_of(0, 100_000), queues=2, archive_batch=50_000, copy_batch=30_000, copy_tasks=1, strikes=strikes
    )
    run = Run(plan, tmp_path / "run", print, delivery="at-least-once")
    with pytest.raises(Broken, match="messages were copied more than once"):
        run.run()
    assert len(run.problems) <= 2, run.problems  # The copies, and their order: nothing else.
