"""`python -m tests.crash.pair_ledger FIRST [LAST] [--mode sync|async] [--trace]`: schedules by their seeds."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.crash.pair_ledger import Broken, Report, Wanted, run_seeds
from tests.crash.pair_ledger.course import MODES
from tests.support import PATIENCE


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.crash.pair_ledger", description=__doc__)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, nargs="?", help="the last seed; only the first one if it is not given")
    parser.add_argument("--mode", choices=MODES, default="sync", help="the master's role")
    parser.add_argument("--rounds", type=int, default=Wanted.rounds, help="troubles of a schedule at most")
    parser.add_argument(
        "--no-master-power", action="store_true", help="leave out power loss of a SYNC_MASTER with ASYNC_FLUSH"
    )
    parser.add_argument("--at-once", type=int, default=4, help="schedules beside each other")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds to wait for what comes by itself")
    parser.add_argument("--keep", action="store_true", help="leave the files of each schedule where they are")
    parser.add_argument("--trace", action="store_true", help="tell each step")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL + 1)
    wanted = Wanted(asked.mode, asked.rounds, not asked.no_master_power, asked.trace, asked.patience, asked.keep)
    sums, failed = Report(), 0
    last = asked.first if asked.last is None else asked.last
    for outcome in run_seeds(range(asked.first, last + 1), wanted, asked.at_once):
        if isinstance(outcome, Broken):
            failed += 1
            print(outcome, flush=True)
        else:
            sums.add(outcome)
    print(
        f"{sums.seeds + failed} schedules of {asked.mode}: {sums.acked} messages acked, {sums.ambiguous} ambiguous, {sums.refused} "
        f"refused; {sums.promotions} promotions, {sums.cuts} tails cut off; {sums.lost} acked messages lost that may be, {sums.hidden} "
        f"passed over by the group; {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
