"""How far a slave of MetaQ 1.x is behind its master, by what both tell of their partitions. Pure."""

from __future__ import annotations

from msgspec import Struct

from metaq.admin.figures.metaq1 import Metaq1Figures, Metaq1Partition


class PartitionLag(Struct, frozen=True):
    """A partition of the master, byte positions; None: the slave has none of it."""

    topic: str
    partition: int
    master: int
    """Where it ends at the master."""
    slave: int | None
    lacks: int
    """Bytes that the slave lacks; below 0: it has more than its master, and copies nothing."""


class SlaveStatus(Struct, frozen=True):
    """A slave beside its master."""

    is_slave: bool
    """Whether it says so of itself."""
    same_broker: bool
    """Whether both have one broker id."""
    partitions: tuple[PartitionLag, ...]

    @property
    def lacks(self) -> int:
        return sum(max(0, one.lacks) for one in self.partitions)

    @property
    def replicates(self) -> bool:
        """Whether it has all that its master has, and nothing else."""
        return self.is_slave and self.same_broker and not any(one.lacks for one in self.partitions)


def slave_status(master: Metaq1Figures, slave: Metaq1Figures) -> SlaveStatus:
    """Compare what both have told; the master is to be asked first, so that what comes in between counts as copied."""
    theirs = {(one.topic, one.partition): one for one in slave.partitions}
    lags = [_lag(one, theirs.get((one.topic, one.partition))) for one in master.partitions if one.high >= 0]
    return SlaveStatus(
        slave.broker.get("slave") == "true",
        slave.broker.get("broker_id") == master.broker.get("broker_id"),
        tuple(sorted(lags, key=lambda lag: (-lag.lacks, lag.topic, lag.partition))),
    )


def _lag(mine: Metaq1Partition, theirs: Metaq1Partition | None) -> PartitionLag:
    there = theirs.high if theirs is not None and theirs.high >= 0 else None
    # Of what the slave does not have, what the master still keeps is to come.
    behind = mine.high - (there if there is not None else mine.low)
    return PartitionLag(mine.topic, mine.partition, mine.high, there, behind)
