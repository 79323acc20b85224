"""A broker's life with kills, power cuts, full disks and damaged files, from a seed: what it acknowledged must hold.

    python -m tests.crash.simulation 1 1000     # seeds 1 to 1000; each that fails is told with the command that repeats it

One thread drives a real store and the broker's real services on a `PowerLossDisk`, so the same seed does the same. A ledger
knows what was acknowledged, the files are read by an independent reader.
"""

from tests.crash.simulation.ledger import Broken
from tests.crash.simulation.life import Report
from tests.crash.simulation.simulation import scratch, simulate

__all__ = ["Broken", "Report", "scratch", "simulate"]
