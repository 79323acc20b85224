"""Chunks as the log holds them: recent ones at once, older ones by a thread."""

from __future__ import annotations

from typing import Final

from metaq.broker.environment import Environment
from metaq.broker.transactions.checks import ReadCold
from metaq.errors import RemoteProtocolError
from metaq.model import StoredMessage
from metaq.store.reads.pull import ReadResult, ReadStatus
from metaq.wire.record import decode_record

READS_MAX: Final = 64
"""Chunks that threads read at a time, or have read."""
READ_BYTES_MAX: Final = 64 << 20
"""What these may have together. One is read in any case, however large it is."""
KEPT_SECONDS: Final = 10.0
"""So long a chunk that was read waits to be asked for: what it was read for may be over."""


class Damaged(Exception):
    """A chunk is not where it was staged."""


def decoded(record: bytes) -> StoredMessage:
    """A chunk's record. Raises Damaged."""
    try:
        return decode_record(record)
    except RemoteProtocolError:
        raise Damaged from None


class ChunkReader:
    """Reads chunks, each once."""

    def __init__(self, environment: Environment, read_cold: ReadCold) -> None:
        self._store, self._options, self._read_cold = environment.store, environment.store_options, read_cold
        self._clock = environment.clock
        self._found: dict[int, bytes | None] = {}
        """LogOffset → the record that a thread has read; None: it reads."""
        self._sizes: dict[int, int] = {}
        """The same places → how large the chunks are."""
        self._bytes = 0
        """Of all of them."""
        self._read_at: dict[int, float] = {}
        """LogOffset → when it was read; the oldest first."""

    @property
    def full(self) -> bool:
        """Whether so many are read, or wait to be asked for, that no more are read now."""
        if not self._is_full:
            return False
        late = self._clock.monotonic() - KEPT_SECONDS
        for place in [place for place, read_at in self._read_at.items() if read_at < late]:
            self._drop(place)
        return self._is_full

    @property
    def _is_full(self) -> bool:
        return len(self._found) >= READS_MAX or self._bytes >= READ_BYTES_MAX

    def get(self, place: int, size: int) -> StoredMessage | None:
        """The chunk, which has about so many bytes; None: a thread reads it, ask again. Raises Damaged."""
        record = self.record(place, size)
        return None if record is None else decoded(record)

    def record(self, place: int, size: int) -> bytes | None:
        """The chunk's record as the log holds it, b"" if it does not; None: a thread reads it, ask again."""
        if self._store.log_end - place <= self._options.hot_bytes:
            return self._store.record_at(place) or b""
        if place not in self._found:
            if self.full:
                return None
            self._found[place], self._sizes[place] = None, size
            self._bytes += size
            self._read_cold(
                lambda: ReadResult(ReadStatus.FOUND, 0, 0, 0, self._store.record_at(place) or b""),
                lambda found: self._take(place, found),
            )
        found = self._found.get(place)
        if found is not None:
            self._drop(place)
        return found

    def _drop(self, place: int) -> None:
        del self._found[place]
        self._read_at.pop(place, None)
        self._bytes -= self._sizes.pop(place)

    def _take(self, place: int, found: ReadResult | None) -> None:
        if found is None:
            self._drop(place)
        else:
            self._found[place] = bytes(found.body)
            self._read_at[place] = self._clock.monotonic()
