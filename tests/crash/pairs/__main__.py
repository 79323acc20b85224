"""`python -m tests.crash.pairs FIRST [LAST] [--trace]`: pairs by their seeds."""

from __future__ import annotations

import sys

from tests.crash.pairs import simulate
from tests.crash.simulation.seeds import run

if __name__ == "__main__":
    sys.exit(run("tests.crash.pairs", __doc__, "pair", "pairs", simulate))
