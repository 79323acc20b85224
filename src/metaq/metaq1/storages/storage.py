"""What a consumer asks of the place that keeps its offsets. Implement it to keep them in a place of your own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from msgspec import Struct

from metaq.metaq1.model.partition import Partition


class StoredOffset(Struct, frozen=True):
    """How far a group has consumed one partition."""

    topic: str
    """Name of the topic."""
    partition: Partition
    """Partition of the topic."""
    offset: int
    """Byte position of the first message that is not consumed."""
    message_id: int = -1
    """Id of the last message before it; -1: unknown. A synchronous slave that takes over finds its own position by it."""


class OffsetStorage(Protocol):
    """Keeps offsets of groups. Its methods block, and are called in a thread of the client's, never two at once for one consumer.

    Whatever a method raises is logged, and it is called again: a commit at the next period, a load until it succeeds. No partition
    is consumed before its offset is loaded. What `commit_offset` has returned from must survive the loss of the process.
    """

    def commit_offset(self, group: str, offsets: Collection[StoredOffset]) -> None:
        """Save offsets that have changed since the last commit. May raise anything; nothing counts as saved then."""
        ...

    def load(self, topic: str, group: str, partition: Partition) -> StoredOffset | None:
        """Return what is saved; None: nothing."""
        ...

    def init_offset(self, topic: str, group: str, partition: Partition, offset: int) -> None:
        """Take note of where a partition begins for which `load` has returned None. May do nothing."""
        ...

    def close(self) -> None:
        """Release what it holds. The consumer's last call, after its last commit."""
        ...


@runtime_checkable
class BulkLoading(Protocol):
    """What a storage may have beside the methods of `OffsetStorage`, to load a thousand partitions at once."""

    def load_many(
        self, group: str, partitions: Collection[tuple[str, Partition]]
    ) -> dict[tuple[str, Partition], StoredOffset]:
        """Return (topic, partition) → what is saved, of those of which something is."""
        ...


def load_all(
    storage: OffsetStorage, group: str, partitions: Collection[tuple[str, Partition]]
) -> dict[tuple[str, Partition], StoredOffset]:
    """Return (topic, partition) → what `storage` has saved: at once if it can, else one after the other. Blocks."""
    if isinstance(storage, BulkLoading):
        return storage.load_many(group, partitions)
    found = {}
    for topic, partition in partitions:
        stored = storage.load(topic, group, partition)
        if stored is not None:
            found[topic, partition] = stored
    return found
