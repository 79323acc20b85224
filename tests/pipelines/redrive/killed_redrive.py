"""`metaq pipeline run redrive -c FILE` that kills itself (-9) at a chosen point: python -m tests.pipelines.redrive.killed_redrive POINT FILE"""

from __future__ import annotations

import os
import signal
import sys

AFTER_PLAN = "between the first step's plan and its decision"
AFTER_DECISION = "between the first step's decision and the ledger"
AFTER_SECOND_DECISION = "between the second step's decision and the ledger"


def main(point: str, file: str) -> None:
    from metaq.cli.main import main as command
    from metaq.pipelines.redrive.job import _Redrive

    real, steps = _Redrive._write, []

    def write(job, step):
        steps.append(step)
        if point != AFTER_PLAN:
            real(job, step)
        if len(steps) == (2 if point == AFTER_SECOND_DECISION else 1):
            os.kill(os.getpid(), signal.SIGKILL)

    _Redrive._write = write
    sys.argv = ["metaq", "pipeline", "run", "redrive", "-c", file]
    command()


if __name__ == "__main__":
    main(*sys.argv[1:])
