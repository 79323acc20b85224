"""Ids of messages that were consumed, by which repetitions are left out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol


class MessageIdCache(Protocol):
    """Remembers some ids of consumed messages. Implement it to share them between processes. Called in listeners' threads, several
    at once; an error that it raises counts as the message's."""

    def seen(self, group: str, message_id: int) -> bool:
        """Say whether the message was consumed, as far as is known."""
        ...

    def add(self, group: str, message_id: int) -> None:
        """Remember a message that was consumed."""
        ...


class LruMessageIdCache:
    """A `MessageIdCache` in memory: the ids used last.

    Args: size: how many; 0: none, so that repetitions are delivered.
    """

    def __init__(self, size: int = 4096) -> None:
        self.size = size
        self._ids: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._lock = threading.Lock()

    def seen(self, group: str, message_id: int) -> bool:
        """Say whether the message was consumed, as far as is known."""
        key = (group, message_id)
        if key not in self._ids:  # mostly so, and without the lock
            return False
        with self._lock:
            if key in self._ids:
                self._ids.move_to_end(key)
        return True

    def add(self, group: str, message_id: int) -> None:
        """Remember a message that was consumed, and forget the one that was used longest ago if there are more than `size`."""
        if not self.size:
            return
        with self._lock:
            self._ids[group, message_id] = None
            if len(self._ids) > self.size:
                self._ids.popitem(last=False)
