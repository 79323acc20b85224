"""The slave of a synchronous pair: stores what its master sends, with the master's ids, in the order in which it comes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from metaq.broker.channel import Channel
from metaq.broker.log.appender import Appender
from metaq.broker.metaq1.partitions import Partitions
from metaq.broker.metaq1.transactions import Metaq1Transactions
from metaq.errors import Reason, Refused
from metaq.model.access import Caller
from metaq.model.metaq1.pair import BranchCopy, BranchStep, PartitionSync
from metaq.model.metaq1.partition import PartitionStored
from metaq.model.transactions.metaq1 import BranchRefused, Fault, transaction_key
from metaq.wire.hot import crc31

NO_PUTS: Final = "this broker is the slave of a synchronous pair (gregor): it takes messages from its master alone"
KNOWN_MAX: Final = 4096
"""Newest messages that are known when they come once more, of all partitions."""


class Gregor:
    """Takes messages from the master.

    A message that comes once more, after its answer was lost, is not stored again: it would move all later ones to other byte
    positions than they have at the master. The original stores it twice, and its masters send none twice.
    """

    def __init__(self, partitions: Partitions, transactions: Metaq1Transactions, appender: Appender) -> None:
        self._partitions, self._transactions, self._appender = partitions, transactions, appender
        appender.reserved = NO_PUTS
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

    def branch(self, copy: BranchCopy, born_host: bytes, channel: Channel) -> None:
        """Take a step of the copy of a branch. Raises Refused, Saving.

        PREPARE repeated, and END of a copy that is not here, are no errors: the master may not have heard the answer.
        """
        if copy.step is BranchStep.ASK:
            return
        # What is staged here is the master's, though it does not come as a message.
        self._appender.reserved = None
        try:
            self._take(copy, born_host, channel)
        except BranchRefused as error:
            if not (copy.step is BranchStep.END and error.fault is Fault.NOT_KNOWN):
                raise
        finally:
            self._appender.reserved = NO_PUTS

    def _take(self, copy: BranchCopy, born_host: bytes, channel: Channel) -> None:
        key, message, transactions = transaction_key(copy.key), copy.message, self._transactions
        if copy.step is BranchStep.PREPARE:
            if not transactions.is_prepared(key):
                transactions.prepare(key, channel)
        elif copy.step is BranchStep.END:
            transactions.rollback(key, channel)
        elif message is None:
            raise Refused(Reason.INVALID, f"a message of branch {copy.key[:100]} is missing")
        else:
            transactions.begin(key, 0, channel)
            sync = PartitionSync(
                topic=message.topic, partition=message.partition, message_id=message.message_id, body=message.body,
                flag=message.flag, born_host=born_host,
            )  # fmt: skip
            transactions.put(key, sync, channel)
