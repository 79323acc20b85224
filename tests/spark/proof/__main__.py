"""`python -m tests.spark.proof FIRST [LAST]`: a line per seed, and for one that fails what was found and how to repeat it."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from pathlib import Path

from tests.spark.proof.plan import MESSAGES, plan_of
from tests.spark.proof.run import run_seed


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.spark.proof", description=__doc__)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, nargs="?", help="the last seed; only the first one if it is not given")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--trace", action="store_true", help="tell each kill")
    parser.add_argument("--plan", action="store_true", help="only say what would be done")
    parser.add_argument(
        "--folder", type=Path, help="where seeds work and failed ones leave what they found; by default a new one"
    )
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="metaq-proof-"))
    failed = []
    for seed in range(asked.first, (asked.first if asked.last is None else asked.last) + 1):
        plan = plan_of(seed, asked.messages)
        if asked.plan or asked.trace:
            print(plan, flush=True)
        if asked.plan:
            continue
        try:
            print(
                run_seed(plan, folder / f"seed-{seed}", lambda line: print(line, flush=True) if asked.trace else None),
                flush=True,
            )
        except Exception:
            failed.append(seed)
            traceback.print_exc(file=sys.stdout)
            again = f"python -m tests.spark.proof {seed} --messages {asked.messages} --trace"
            print(f"seed {seed} FAILED; what it left: {folder / f'seed-{seed}'}; again: {again}", flush=True)
    if failed:
        print(f"failed: {failed}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
