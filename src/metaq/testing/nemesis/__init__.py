"""The nemesis: faults of a cluster, drawn from a seed (docs/testing.md).

schedule = make_schedule(7, topology_of(cluster), ("kill", "stop", "partition"), seconds=20)
with Nemesis(cluster, ledger, schedule) as nemesis:
    nemesis.run()
# every fault is undone, and everything runs
"""

from metaq.testing.nemesis.nemesis import Nemesis, topology_of
from metaq.testing.nemesis.schedule import (
    ALWAYS,
    FAULTS,
    Fault,
    Schedule,
    Step,
    Topology,
    checked_faults,
    make_schedule,
)

__all__ = [
    "ALWAYS",
    "FAULTS",
    "Fault",
    "Nemesis",
    "Schedule",
    "Step",
    "Topology",
    "checked_faults",
    "make_schedule",
    "topology_of",
]
