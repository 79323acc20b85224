"""`python -m tests.crash.pairs FIRST [LAST] [--trace]`: pairs by their seeds."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.crash.pairs import simulate
from tests.crash.simulation import Broken, scratch


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.crash.pairs", description=__doc__)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, nargs="?", help="the last seed; only the first one if it is not given")
    parser.add_argument("--trace", action="store_true", help="tell each step")
    parser.add_argument("--failures", type=int, default=10, help="stop after so many")
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO if asked.trace else logging.CRITICAL + 1, format="    log: %(message)s")
    failed, stored, lost, ends = 0, 0, 0, 0
    last = asked.first if asked.last is None else asked.last
    with tempfile.TemporaryDirectory(prefix="metaq-pairs-", dir=scratch()) as folder:
        for seed in range(asked.first, last + 1):
            try:
                report = simulate(seed, Path(folder) / "pair", print if asked.trace else None)
            except Broken as error:
                failed += 1
                print(error, flush=True)
                if failed >= asked.failures:
                    break
            else:
                stored, lost, ends = stored + report.stored, lost + report.lost, ends + report.kills + report.cuts
    told = f"{stored} messages stored, {ends} kills and cuts, {lost} messages lost that were not durable"
    print(f"{seed - asked.first + 1} pairs: {told}; {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
