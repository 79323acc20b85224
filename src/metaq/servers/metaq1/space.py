"""What the sessions of one MetaQ 1.x server share: the broker's services, the server's limits, and what counts and tells failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from metaq.broker.broker import Broker
from metaq.broker.channel import Channel
from metaq.broker.log.acks import Due
from metaq.broker.metaq1.fast_path import PartitionFastPath
from metaq.broker.metaq1.pair.gregor import Gregor
from metaq.broker.metaq1.partitions import Partitions
from metaq.broker.metaq1.settings import Metaq1Settings
from metaq.model.access import Caller
from metaq.model.metaq1.partition import FRAME_HEADER_BYTES, PartitionPut
from metaq.servers.held_acks import HeldAcks
from metaq.servers.metaq1.answers import Behind
from metaq.servers.metaq1.failures import Failures
from metaq.servers.metaq1_counters import Counters
from metaq.servers.pieces import ColdReads
from metaq.servers.slices import SlowWork
from metaq.servers.waiting import Parking
from metaq.wire.hot import AppendOutcome, Replies
from metaq.wire.metaq1.commands import PutLine, TransactionLine


class Transactions(Protocol):
    """Transactions, as sessions need them (`metaq.servers.metaq1.transactions`)."""

    def step(self, line: TransactionLine, session: Channel) -> bytes | None:
        """Take a step. Return the body of the answer; None: END has none. Raises Refused with the whole text,
        Saving."""
        ...

    def put(self, line: PutLine, put: PartitionPut, session: Channel) -> bytes:
        """Put a message into a transaction. Return the body of the answer. Raises Refused with the whole text,
        Saving."""
        ...

    def due(self) -> Due | None:
        """Return what the answers to the steps so far wait for; None: nothing."""
        ...


class Space(Struct):
    """Shared by the sessions of one server."""

    broker: Broker
    partitions: Partitions
    settings: Metaq1Settings
    transactions: Transactions
    held_acks: HeldAcks
    cold_reads: ColdReads
    counters: Counters
    stats: Callable[[str | None], bytes]
    """Makes the body of the answer to `stats` of an item."""
    failures: Failures
    version: bytes
    fast_path: PartitionFastPath
    acks: Replies
    """Buffer of the answers of one call of the fast path."""
    outcome: AppendOutcome
    parking: Parking
    behind: Behind
    slow_work: SlowWork
    gregor: Gregor | None = None
    """Takes syncs: this broker is the slave of a pair, and takes no puts."""
    identify: Callable[[Caller], Caller] | None = None
    """Finds the caller of a connection by its address; None: there is no access control."""
    connections: int = 0

    @property
    def body_bytes_max(self) -> int:
        """Longest body that is read."""
        shortest = self.settings.options.max_transfer_size - FRAME_HEADER_BYTES
        # A master may have longer ones, of RocketMQ's clients: without them the slave would lack all that comes behind.
        return shortest if self.gregor is None else max(shortest, self.broker.store_options.max_message_size)
