"""`python -m tests.crash.simulation FIRST [LAST] [--trace]`: lives by their seeds."""

from __future__ import annotations

import sys

from tests.crash.simulation import simulate
from tests.crash.simulation.seeds import run

if __name__ == "__main__":
    sys.exit(run("tests.crash.simulation", __doc__, "life", "lives", simulate))
