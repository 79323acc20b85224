"""What the services of one broker share."""

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
"""Runs the first in a thread, then gives its result, None if it failed, to the second in the loop."""


class Environment(Struct, frozen=True):
    """Settings, time and store of one broker, and the name it goes by.

    Services look at an option when they need it, and keep none: some change, in place, while the broker runs.
    """

    options: BrokerOptions
    store_options: StoreOptions
    clock: Clock
    store: MessageStore
    name: str
    store_host: bytes
    """The address and port that offset ids name, 8 or 20 bytes."""


class Tables(Struct, frozen=True):
    """What one broker knows of topics and groups."""

    topics: Topics
    groups: Groups
    members: Members
    offsets: Offsets
    closed_partitions: ClosedPartitions


def read_at_once(job: Callable[[], ReadResult], done: Callable[[ReadResult | None], None]) -> None:
    """Read in the caller's thread: a `ReadCold` for tests and tools."""
    done(job())
