"""The modes that brokers are tried in: which processes, with which options, and what is promised then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct, field

from metaq.errors import ConfigError
from metaq.testing.checking import Promises
from metaq.testing.checking.violation import ALL_STATUSES
from metaq.testing.nemesis import ALWAYS


class Mode(Struct, frozen=True):
    """A way to run brokers, and what is promised then: one row of `MODES`."""

    summary: str
    """What it is, in words."""
    replicas: int = 1
    """Processes of each broker."""
    zookeepers: int = 0
    """Servers of the ZooKeeper ensemble; 0: there is none."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Of all brokers."""
    faults: tuple[str, ...] = ALWAYS
    """What a run has if nobody says which; faults of disks are among them if they are of this mode's promises."""
    kept_statuses: frozenset[str] = ALL_STATUSES
    """Statuses after which a message may not be lost."""
    reads_stay_without_power: bool = True
    """Whether what was read once is there in the end, though power was cut."""

    def promises(self, groups: tuple[str, ...], faults: Collection[str]) -> Promises:
        """Return what is promised in a run with these faults."""
        return Promises(self.kept_statuses, self.reads_stay_without_power or "power" not in faults, groups)


# A sync is answered after 5 s at the latest, FLUSH_DISK_TIMEOUT: then only the page cache has it.
_ON_DISK: Final = ALL_STATUSES - {"FLUSH_DISK_TIMEOUT"}
# After FLUSH_SLAVE_TIMEOUT the in-sync set is not known to have it.
_IN_SYNC: Final = _ON_DISK - {"FLUSH_SLAVE_TIMEOUT"}
_FAILOVER: Final = (*ALWAYS, "zookeeper")

MODES: Final[dict[str, Mode]] = {
    "single": Mode(
        "brokers without replicas, each send on the disk before its acknowledgement",
        options={"flushDiskType": "SYNC_FLUSH"},
        faults=(*ALWAYS, "slow-disk", "power"),
        kept_statuses=_ON_DISK,
        # A pull does not wait for the disk.
        reads_stay_without_power=False,
    ),
    "sync": Mode(
        "a SYNC_MASTER and a slave, without elections",
        replicas=2,
        options={"flushDiskType": "SYNC_FLUSH", "inSyncReplicas": 2},
        faults=(*ALWAYS, "slow-disk", "power"),
        kept_statuses=_ON_DISK,
        # While no slave reports, all that is stored is read.
        reads_stay_without_power=False,
    ),
    "failover": Mode(
        "two replicas that elect their leader in ZooKeeper",
        replicas=2,
        zookeepers=1,
        options={"failover": "zookeeper", "minInSyncReplicas": 1, "flushDiskType": "SYNC_FLUSH"},
        kept_statuses=_IN_SYNC,
        faults=(*_FAILOVER, "slow-disk", "power"),
    ),
    "failover-3": Mode(
        "three replicas that elect their leader in ZooKeeper, two of which have every message",
        replicas=3,
        zookeepers=1,
        options={"failover": "zookeeper", "minInSyncReplicas": 2, "flushDiskType": "SYNC_FLUSH"},
        kept_statuses=_IN_SYNC,
        faults=(*_FAILOVER, "slow-disk", "power"),
    ),
}
"""Name → mode."""
NIGHTLY: Final = ("sync", "failover", "failover-3")
"""The modes of `make nightly`: those whose brokers are there."""


def mode_of(name: str) -> Mode:
    """Return a mode. Raises ConfigError: there is none of this name."""
    if name not in MODES:
        raise ConfigError(f"mode {name!r}: need one of {', '.join(MODES)}")
    return MODES[name]
