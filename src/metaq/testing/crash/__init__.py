"""A broker's life with kills, power cuts, full disks and damaged files, from a seed: what it acknowledged must hold.

    python -m metaq.testing.crash 1 1000     # seeds 1 to 1000; each that fails is told with the command that repeats it

One thread drives a real store and the broker's real services on a `PowerLossDisk`, so the same seed does the same. A ledger
knows what was acknowledged, the files are read by an independent reader.
"""

from metaq.testing.crash.ledger import Broken
from metaq.testing.crash.life import Report
from metaq.testing.crash.simulation import scratch, simulate

__all__ = ["Broken", "Report", "scratch", "simulate"]
