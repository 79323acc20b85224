"""A master and its slave from a seed: the log's copy, ends of either side, and changes of leaders.

    python -m tests.crash.pairs 1 1000     # seeds 1 to 1000; each that fails is told with the command that repeats it

Both brokers, their disks (`PowerLossDisk`) and the link between them are in one thread with one clock, so the same seed does the
same. The broker that leads is held against the ledger of `tests.crash.simulation`, the other one against it at each quiet point.
"""

from tests.crash.pairs.simulation import simulate

__all__ = ["simulate"]
