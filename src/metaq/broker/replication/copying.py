"""What a slave makes of the chunks of its master: the same bytes in its own log, its queues and its index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from metaq.broker.environment import Environment
from metaq.broker.log.appender import Appender
from metaq.broker.tables.topics import Topics
from metaq.errors import RemoteProtocolError

RECORD_BYTES_MORE: Final = 128 * 1024
"""Bytes of a record beside its body at most: topic, properties and fixed fields."""
UNFINISHED_BYTES_MIN: Final = 64 * 1024 * 1024
"""Unfinished records up to here are waited for whatever `maxMessageSize` is: it may have been larger at the master."""


class Piece(Protocol):
    """Bytes of the master's log (`metaq.wire.ha.Chunk`)."""

    @property
    def log_offset(self) -> int: ...

    @property
    def data(self) -> memoryview: ...


class Copying:
    """The copy of one master's log, over one connection. Only on the thread that owns the broker.

    Only whole records are appended. What a chunk cuts off waits for the next one, and is not reported.

    Args:
        unknown: called when messages come of a topic that is not known here: the tables are behind the log.
    """

    def __init__(
        self, environment: Environment, appender: Appender, topics: Topics, unknown: Callable[[], None]
    ) -> None:
        self._store, self._appender, self._topics, self._unknown = environment.store, appender, topics, unknown
        self._syncs = environment.store_options.flush_disk_type == "SYNC_FLUSH"
        self._unfinished_max = max(UNFINISHED_BYTES_MIN, environment.store_options.max_message_size + RECORD_BYTES_MORE)
        self._rest = b""
        """The begin of a record, which the log goes on with."""

    @property
    def log_end(self) -> int:
        """LogOffset up to which the log is here."""
        return self._store.log.end

    @property
    def held(self) -> int:
        """LogOffset up to which this slave can promise the log: on its disk, where it flushes before it answers."""
        return min(self._store.state.flushed, self.log_end) if self._syncs else self.log_end

    def when_held(self, done: Callable[[], None]) -> None:
        """Call `done` once all that is here can be promised, perhaps in another thread."""
        if self._syncs:
            self._store.flusher.when_flushed(self.log_end, lambda _good: done())
        else:
            done()

    def take(self, pieces: Sequence[Piece]) -> None:
        """Append what came.

        Raises: RemoteProtocolError: it does not go on with this log. StoreError: it is not what a log holds, or there is no
        room; the connection is to be ended in any case.
        """
        parts, start = list[bytes | memoryview]([self._rest] if self._rest else []), self.log_end
        place = start + len(self._rest)
        for piece in pieces:
            if not len(piece.data):  # a heartbeat
                continue
            if piece.log_offset != place:
                if place or piece.log_offset % self._store.log.file_bytes:
                    raise RemoteProtocolError(
                        f"it sends its log from {piece.log_offset} on, and {place} comes next here"
                    )
                start = place = piece.log_offset  # an empty log begins where the master's first file does
            parts.append(piece.data)
            place += len(piece.data)
        if place == start + len(self._rest):
            return
        data = memoryview(parts[0]) if len(parts) == 1 else memoryview(b"".join(parts))
        appended = self._appender.copy(data, start)
        end = appended.log_end
        if any(self._topics.get(topic) is None for topic, _ in appended.queues):
            self._unknown()
        self._rest = bytes(data[end - start :])
        if len(self._rest) > self._unfinished_max:
            raise RemoteProtocolError(f"its record at log offset {end} has more than {self._unfinished_max} bytes")
