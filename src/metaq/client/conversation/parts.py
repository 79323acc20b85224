"""The messages of a staged transaction before they are staged: gathered per queue, cut into chunks, sealed, listed.

    parts = Parts(id_prefixes.next)
    parts.add(queue, 0, b"body", b"KEYS\1k")     # the message's id
    parts.take("broker-a")                       # chunks for one request: when too much has gathered
    parts.rest("broker-a")                       # at the end: what is left, each part with its seal
    parts.manifest()                             # what the decision is about

There is one part per queue, so the messages of a queue keep their order. Not safe from several threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from metaq.errors import InvalidMessage
from metaq.model import MessageQueue
from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.model.staging import CHUNK_BYTES_MAX, Chunk, ManifestPart, Seal, chunk_crc, part_crc
from metaq.wire import hot

CHUNK_BYTES: Final = 256 * 1024
"""A chunk is full with so many; one of a single message may have CHUNK_BYTES_MAX. A chunk's messages are put into their
queue in one go, and must fit a log file of the broker."""
REQUEST_BYTES: Final = CHUNK_BYTES_MAX
"""Bodies of chunks in one request."""
REQUEST_CHUNKS: Final = 512


class _Part:
    """What goes to one queue. The numbers are of the chunks that were taken."""

    __slots__ = ("batch", "bytes", "chunks", "crc", "name", "prefix", "queue", "rows", "sealed", "waiting")

    def __init__(self, name: str, queue: MessageQueue) -> None:
        self.name, self.queue = name, queue
        self.batch: hot.Batch | None = None
        self.prefix = ""
        self.waiting: deque[tuple[bytes, int]] = deque()
        """Chunks that are full, and their messages."""
        self.chunks = self.rows = self.bytes = self.crc = 0
        self.sealed = False

    @property
    def waits(self) -> int:
        """Bytes that were not taken yet."""
        return sum(len(body) for body, _ in self.waiting) + (self.batch.size if self.batch is not None else 0)

    @property
    def seal(self) -> Seal:
        return Seal(self.chunks, self.rows, self.bytes, self.crc)

    def close_chunk(self) -> None:
        if self.batch is not None and self.batch.count:
            self.waiting.append((self.batch.take(), self.batch.count))
            self.batch = None

    def take(self, *, last: bool) -> Chunk:
        """The next chunk; with its seal if it is the `last` that there will be."""
        if not self.waiting:
            self.close_chunk()
        body, rows = self.waiting.popleft()
        number = self.chunks
        self.chunks += 1
        self.rows += rows
        self.bytes += len(body)
        self.crc = part_crc(self.crc, chunk_crc(body))
        self.sealed = last and not self.waits
        seal = self.seal if self.sealed else None
        return Chunk(self.name, number, self.queue.topic, self.queue.queue_id, body, seal)


class Parts:
    """All messages of one transaction."""

    def __init__(self, id_prefix: Callable[[], bytes], chunk_bytes: int = CHUNK_BYTES, name: str = "p") -> None:
        """Args: id_prefix: makes the beginning of the messages' ids, another for each chunk. name: how the parts' ids
        begin; they are numbered behind it."""
        self._id_prefix, self._chunk_bytes, self._name = id_prefix, chunk_bytes, name
        self._parts: dict[MessageQueue, _Part] = {}
        self.rows = 0
        """Messages, those included that were taken."""
        self.waits = 0
        """Bytes that were not taken yet."""

    @property
    def brokers(self) -> list[str]:
        """Those that have parts, in the order of their first message."""
        return list(dict.fromkeys(queue.broker for queue in self._parts))

    def add(self, queue: MessageQueue, flag: int, body: bytes, properties: bytes) -> str:
        """Append a message to its queue's part; its id. Raises InvalidMessage: it is too large for a chunk, or empty;
        LocalProtocolError: properties that no format carries."""
        part = self._parts.get(queue)
        batch = part.batch if part is not None else None
        before = batch.size if batch is not None else 0
        index = batch.add(flag, body, properties) if batch is not None else -1
        if batch is None or index < 0:
            prefix = self._id_prefix()
            batch, before = hot.Batch(prefix, self._chunk_bytes), 0
            if (index := batch.add(flag, body, properties)) < 0:
                batch = hot.Batch(prefix, CHUNK_BYTES_MAX)
                index = batch.add(flag, body, properties)
            if index < 0:
                raise InvalidMessage(
                    f"a message of {len(body)} bytes for {queue} cannot be part of an atomic() block: with its properties "
                    f"it must have 1 to {CHUNK_BYTES_MAX} bytes; send a reference to the data"
                )
            part = self._part(queue)
            part.close_chunk()
            part.batch, part.prefix = batch, prefix.decode()
        assert part is not None
        self.waits += batch.size - before
        self.rows += 1
        return f"{part.prefix}{index:04X}"

    def add_rows(self, queue: MessageQueue, columns: hot.RowColumns, rows: memoryview) -> None:
        """Append the messages of these rows to their queue's part. `rows`: row numbers, a view of C ints.

        Raises InvalidMessage: one is too large for a chunk, or empty; those before it were added.
        """
        part, done = self._part(queue), 0
        while done < len(rows):
            batch = part.batch or self._begun(part, self._chunk_bytes)
            before = batch.size
            after = batch.add_rows(columns, done, rows)
            if after == done and not batch.count:  # A large one gets a chunk of its own.
                batch, before = self._begun(part, CHUNK_BYTES_MAX), 0
                after += batch.add_rows(columns, 0, rows[done : done + 1])
                if after == done:
                    raise InvalidMessage(
                        f"row {rows[done]}: a message for {queue} with its properties must have 1 to {CHUNK_BYTES_MAX} bytes "
                        f"to be part of a transaction, and at most {PROPERTIES_BYTES_MAX} of properties; send a reference to "
                        "the data"
                    )
            self.waits += batch.size - before
            self.rows += after - done
            if after < len(rows):
                part.close_chunk()
            done = after

    def _begun(self, part: _Part, chunk_bytes: int) -> hot.Batch:
        part.close_chunk()
        prefix = self._id_prefix()
        part.batch, part.prefix = hot.Batch(prefix, chunk_bytes), prefix.decode()
        return part.batch

    def _part(self, queue: MessageQueue) -> _Part:
        part = self._parts.get(queue)
        if part is None:
            part = self._parts[queue] = _Part(f"{self._name}{len(self._parts)}", queue)
        return part

    def fullest(self) -> str:
        """The broker for which most is waiting."""
        waits: dict[str, int] = {}
        for part in self._parts.values():
            waits[part.queue.broker] = waits.get(part.queue.broker, 0) + part.waits
        return max(waits, key=lambda broker: waits[broker])

    def take(self, broker: str) -> tuple[Chunk, ...]:
        """Chunks for one request to `broker`, of those parts first for which most is waiting."""
        return self._taken(broker, last=False)

    def rest(self, broker: str) -> tuple[tuple[Chunk, ...], ...]:
        """All that is left for `broker`, one item for each request; every part that is left ends there."""
        requests = []
        while chunks := self._taken(broker, last=True):
            requests.append(chunks)
        return tuple(requests)

    def _taken(self, broker: str, *, last: bool) -> tuple[Chunk, ...]:
        waiting = [part for part in self._parts.values() if part.queue.broker == broker and part.waits]
        chunks: list[Chunk] = []
        size = 0
        for part in sorted(waiting, key=lambda part: -part.waits):
            while part.waits and len(chunks) < REQUEST_CHUNKS:
                if not part.waiting:
                    part.close_chunk()
                if chunks and size + len(part.waiting[0][0]) > REQUEST_BYTES:
                    break
                chunks.append(part.take(last=last))
                size += len(chunks[-1].body)
        self.waits -= size
        return tuple(chunks)

    def unsealed(self, broker: str) -> tuple[ManifestPart, ...]:
        """Parts of `broker` that did not end with their last chunk: each needs a request that seals it."""
        return tuple(
            one
            for part, one in zip(self._parts.values(), self.manifest(), strict=True)
            if part.queue.broker == broker and not part.sealed
        )

    def manifest(self) -> tuple[ManifestPart, ...]:
        """All parts with what was taken of them; at the end: what the decision is about."""
        return tuple(
            ManifestPart(part.queue.broker, part.name, part.queue.topic, part.queue.queue_id, part.seal)
            for part in self._parts.values()
        )
