"""The slave of a synchronous pair: stores what its master sends, with the master's ids, in the order in which it comes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from metaq.broker.metaq1.partitions import Partitions
from metaq.model.access import Caller
from metaq.model.metaq1.pair import PartitionSync
from metaq.model.metaq1.partition import PartitionStored
from metaq.wire.hot import crc31

NO_PUTS: Final = "this broker is the slave of a synchronous pair (gregor): it takes messages from its master alone"
KNOWN_MAX: Final = 4096
"""Newest messages that are known when they come once more, of all partitions."""


class Gregor:
    """Takes messages from the master.

    A message that comes once more, after its answer was lost, is not stored again: it would move all later ones to other byte
    positions than they have at the master. The original stores it twice, and its masters send none twice.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._known: OrderedDict[tuple[str, int, int], tuple[int, PartitionStored]] = OrderedDict()
        """(topic, partition, id) → (checksum, where it is)."""

    def sync(self, sync: PartitionSync, caller: Caller) -> PartitionStored:
        """Store a message. Raises Refused and Saving, as `Partitions.put`; nothing is stored then."""
        entry = self._partitions.entry_of_master(sync, caller)
        key = sync.topic, sync.partition, sync.message_id
        checksum = crc31(sync.body)
        known = self._known.get(key)
        if known is not None and known[0] == checksum:
            self._partitions.acks.stored(sync.topic, sync.partition, known[1].log_end)  # it may not be on the disk yet
            return known[1]
        stored = self._partitions.store(entry, len(sync.body), sync.born_host, synced=True)
        self._partitions.ids.passed(sync.message_id)
        self._known[key] = checksum, stored
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return stored
