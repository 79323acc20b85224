"""The shared dependencies of a broker's services: options, clock, store and tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from metaq.broker.tables.closed_partitions import ClosedPartitions
from metaq.broker.tables.groups import Groups
from metaq.broker.tables.members import Members
from metaq.broker.tables.offsets import Offsets
from metaq.broker.tables.topics import Topics
from metaq.clock import Clock
from metaq.options import BrokerOptions, StoreOptions
from metaq.store.message_store import MessageStore
from metaq.store.reads.pull import ReadResult

ReadCold: TypeAlias = Callable[[Callable[[], ReadResult], Callable[[ReadResult | None], None]], None]
"""Runs the first callback in a thread, then passes its result (None if it failed) to the second on the event loop."""


class Environment(Struct, frozen=True):
    """Options, clock, store and name of one broker.

    Services read an option when they need it, and keep no copy: some change, in place, while the broker runs.
    """

    options: BrokerOptions
    store_options: StoreOptions
    clock: Clock
    store: MessageStore
    name: str
    store_host: bytes
    """STOREHOST of records, from which clients decode the broker's address in offset ids: 8 or 20 bytes."""
    instance: str = ""
    """Drawn at the start of this process: tells it from every other."""


class Tables(Struct, frozen=True):
    """The tables of topics and groups of one broker."""

    topics: Topics
    groups: Groups
    members: Members
    offsets: Offsets
    closed_partitions: ClosedPartitions


def read_at_once(job: Callable[[], ReadResult], done: Callable[[ReadResult | None], None]) -> None:
    """Read in the caller's thread. A `ReadCold` for tests and tools."""
    done(job())
