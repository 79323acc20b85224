"""Bounded buffer of records that wait to be sent, with counts of sent and dropped ones.

Logging never waits: the lock is held for a few instructions. It is reentrant, because a signal handler, or a finalizer, may log
in the middle of a `put` of the same thread. Its record is then noted, and added by the `put` around it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from itertools import islice

from msgspec import Struct

FULL, CLOSED, REFUSED, UNFORMATTED, FORKED = "full", "closed", "refused", "unformatted", "forked"
"""Reasons for dropping a record: no room; the handler was closed; the broker refuses it; it could not be formatted; the
producer belongs to the parent process."""


class Entry(Struct):
    """A record to send. `message_id`: of one that may be stored already, which is sent again under the same id."""

    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    is_json: bool = False
    message_id: str | None = None

    @property
    def size(self) -> int:
        """Its bytes in the buffer: body and keys."""
        return len(self.body) + sum(map(len, self.keys))


class Buffer:
    """Records in order of arrival. Any number of threads put, one takes."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max, self._bytes_max = records_max, bytes_max
        self._lock = threading.RLock()
        self._entries: deque[Entry] = deque()
        self._nested: deque[Entry] = deque()
        self._inside = False
        self._bytes = 0
        self._closed = self._abandoned = False
        self._dropped: Counter[str] = Counter()
        self.added = 0
        """Number of records that were ever added."""
        self.left = 0
        """Number of those that have left: sent, or dropped."""
        self.moved = threading.Condition()
        """Notified when `left` grows."""

    @property
    def count(self) -> int:
        """Number of records that wait."""
        return len(self._entries) + len(self._nested)

    @property
    def bytes(self) -> int:
        """Bytes of records that wait."""
        return self._bytes

    @property
    def dropped(self) -> Counter[str]:
        """Reason → number of dropped records."""
        with self._lock:
            return Counter(self._dropped)

    def put(self, entry: Entry) -> None:
        """Add a record; or drop and count it, if there is no room for it or the buffer was closed."""
        with self._lock:
            if self._inside:
                self._nested.append(entry)
                return
            try:
                self._inside = True
                self._add(entry)
                while self._nested:
                    self._add(self._nested.popleft())
            finally:
                self._inside = False

    def _add(self, entry: Entry) -> None:
        size = entry.size
        if self._closed:
            self._dropped[CLOSED] += 1
        elif len(self._entries) >= self._records_max or self._bytes + size > self._bytes_max:
            self._dropped[FULL] += 1
        else:
            self._entries.append(entry)
            self._bytes += size
            self.added += 1

    def drop(self, reason: str, count: int = 1) -> None:
        """Count records that were dropped before they were added."""
        with self._lock:
            self._dropped[reason] += count

    def first(self, count: int, size: int) -> list[Entry]:
        """Return the oldest records: at most `count`, and `size` bytes or one. They stay, and count, until `settle`."""
        with self._lock:
            # The taker's own records never come here, so nobody is inside: not even a put that an interrupt has cut short.
            self._inside = False
            while self._nested:
                self._add(self._nested.popleft())
            found: list[Entry] = []
            for entry in islice(self._entries, count):
                size -= entry.size
                if found and size < 0:
                    break
                found.append(entry)
            return found

    def settle(self, count: int, again: list[Entry], refused: int = 0) -> None:
        """Remove the oldest `count` records as sent, except `again`, which come first again, and `refused` dropped ones."""
        with self._lock:
            # `abandon` has counted these records already, while they were being sent.
            if self._abandoned:
                return
            for _ in range(count):
                self._bytes -= self._entries.popleft().size
            for entry in reversed(again):
                self._entries.appendleft(entry)
                self._bytes += entry.size
            if not self._entries:
                self._bytes = 0
            if refused:
                self._dropped[REFUSED] += refused
            self.left += count - len(again)
        with self.moved:
            self.moved.notify_all()

    def put_first(self, entry: Entry) -> None:
        """Add a record in front of all others, whatever room there is: the summary of dropped ones."""
        with self._lock:
            self._entries.appendleft(entry)
            self._bytes += entry.size
            self.added += 1

    def wait(self, timeout: float) -> bool:
        """Wait until all records that are here now have left. Returns False: some have not after `timeout` seconds."""
        # Records that come while it waits are not waited for: under steady logging it would never end.
        target = self.added
        with self.moved:
            return self.moved.wait_for(lambda: self.left >= target, max(0.0, timeout))

    def close(self) -> None:
        """Accept no more records."""
        with self._lock:
            self._closed = True

    def abandon(self) -> int:
        """Drop all waiting records, also those being sent, which are not known to be stored. Returns their number."""
        with self._lock:
            self._closed = self._abandoned = True
            count = self.count
            self._entries.clear()
            self._nested.clear()
            self._bytes = 0
            if count:
                self._dropped[CLOSED] += count
            self.left += count
        with self.moved:
            self.moved.notify_all()
        return count
