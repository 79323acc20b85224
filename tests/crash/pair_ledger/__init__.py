"""The ack ledger of a pair: what producers were told, held against what master and slave have in the end.

Each seed is a schedule of one master and one slave, real processes, under load: kill -9, SIGSTOP, links that are cut, delayed,
stalled or half open, power loss, full disks, changes of leaders by hand.
"""

from tests.crash.pair_ledger.course import Course, Report, Wanted, run_seed, run_seeds
from tests.crash.pair_ledger.ledger import Broken

__all__ = ["Broken", "Course", "Report", "Wanted", "run_seed", "run_seeds"]
