"""How far a slave of MetaQ 1.x is behind: by the figures of both, whoever made them."""

from __future__ import annotations

from metaq.admin.figures.metaq1 import Metaq1Figures, Metaq1Partition
from metaq.admin.figures.metaq1_slaves import PartitionLag, slave_status


def figures(slave: str, *partitions: tuple[str, int, int, int], broker_id: str = "0") -> Metaq1Figures:
    told = tuple(Metaq1Partition(*one) for one in partitions)
    return Metaq1Figures({"broker_id": broker_id, "slave": slave}, (), told, {})


MASTER = figures("false", ("a", 0, 100, 500), ("a", 1, 0, 70), ("b", 0, 0, 30), ("ours", 0, -1, -1))


def test_a_slave_lacks_what_its_master_has_and_it_has_not():
    """Of a partition that it does not have at all, what the master still keeps; not what nobody has touched."""
    found = slave_status(MASTER, figures("true", ("a", 0, 100, 450), ("b", 0, 0, 30), ("ours", 0, -1, -1)))
    assert found.partitions == (
        PartitionLag("a", 1, 70, None, 70), PartitionLag("a", 0, 500, 450, 50), PartitionLag("b", 0, 30, 30, 0),
    )  # fmt: skip
    assert (found.lacks, found.replicates) == (120, False)


def test_only_a_slave_of_that_broker_that_has_the_same_replicates():
    whole = ("a", 0, 200, 500), ("a", 1, 0, 70), ("b", 0, 0, 30), ("own", 0, 0, 5)
    assert slave_status(MASTER, figures("true", *whole)).replicates
    assert not slave_status(MASTER, figures("false", *whole)).replicates
    assert not slave_status(MASTER, figures("true", *whole, broker_id="1")).replicates
    ahead = slave_status(MASTER, figures("true", ("a", 0, 0, 510), *whole[1:]))
    assert (ahead.lacks, ahead.replicates, ahead.partitions[-1].lacks) == (0, False, -10)
