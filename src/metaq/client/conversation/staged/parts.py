"""Messages of a staged transaction on the client: collected per queue, cut into chunks, sealed, and listed in the manifest.

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
from metaq.model.message import BODY_BYTES_MAX
from metaq.model.properties import PROPERTIES_BYTES_MAX
from metaq.model.transactions.staging import CHUNK_BYTES_MAX, Chunk, ManifestPart, PartSeal, chunk_crc, part_crc
from metaq.wire import hot
from metaq.wire.record import BATCH_ENTRY_BYTES_MIN

CHUNK_BYTES: Final = 256 * 1024
"""A chunk is full with so many; one that begins with a larger message, with CHUNK_BYTES_MAX; and a message that is too large for
that has a chunk to itself. A chunk's messages are put into their queue in one go, and must fit a log file of the broker."""
REQUEST_BYTES: Final = CHUNK_BYTES_MAX
"""Chunk bytes per request; a larger chunk has a request of its own."""
REQUEST_CHUNKS: Final = 512
_ID_BYTES: Final = 41
"""Bytes of the property UNIQ_KEY."""
_ANY_SIZE: Final = 0x7FFFFFFF


def is_large(body: bytes, properties: bytes) -> bool:
    """Return whether a message needs a chunk of its own, which older brokers of ours refuse."""
    joint = bool(properties) and not properties.endswith(b"\2")
    return BATCH_ENTRY_BYTES_MIN + len(body) + len(properties) + joint + _ID_BYTES > CHUNK_BYTES_MAX


def too_old_for_large(broker: str, what: str) -> str:
    """Make the error of a message that needs a chunk of its own at a broker too old for it."""
    return (
        f"broker {broker} is an older MetaQ: its transactions carry messages of {CHUNK_BYTES_MAX} bytes with their properties, "
        f"and {what} is more. Bring it up to date, or send a reference to the data"
    )


def _body_bytes_max(_broker: str) -> int:
    return BODY_BYTES_MAX


class _Part:
    """Part of a transaction: messages for one queue. Totals are those of the chunks taken."""

    __slots__ = ("batch", "bytes", "chunks", "crc", "name", "prefix", "queue", "rows", "sealed", "waiting")

    def __init__(self, name: str, queue: MessageQueue) -> None:
        self.name, self.queue = name, queue
        self.batch: hot.Batch | None = None
        self.prefix = ""
        self.waiting: deque[tuple[bytes, int]] = deque()
        """Full chunks, with their numbers of messages."""
        self.chunks = self.rows = self.bytes = self.crc = 0
        self.sealed = False

    @property
    def waits(self) -> int:
        """Bytes that wait to be taken."""
        return sum(len(body) for body, _ in self.waiting) + (self.batch.size if self.batch is not None else 0)

    @property
    def seal(self) -> PartSeal:
        return PartSeal(self.chunks, self.rows, self.bytes, self.crc)

    def close_chunk(self) -> None:
        if self.batch is not None and self.batch.count:
            self.waiting.append((self.batch.take(), self.batch.count))
            self.batch = None

    def take(self, *, last: bool) -> Chunk:
        """Take the next chunk, with the seal if it is the `last` one."""
        if not self.waiting:
            self.close_chunk()
        body, rows = self.waiting.popleft()
        number = self.chunks
        self.chunks += 1
        self.rows += rows
        self.bytes += len(body)
        self.crc = part_crc(self.crc, chunk_crc(body))
        # The seal rides on the last chunk, and saves a request.
        self.sealed = last and not self.waits
        seal = self.seal if self.sealed else None
        return Chunk(self.name, number, self.queue.topic, self.queue.queue_id, body, seal)


class Parts:
    """The messages of one transaction."""

    def __init__(
        self,
        id_prefix: Callable[[], bytes],
        chunk_bytes: int = CHUNK_BYTES,
        name: str = "p",
        *,
        body_bytes_max: Callable[[str], int] = _body_bytes_max,
        empty: bool = False,
    ) -> None:
        """
        Args:
            id_prefix: makes the beginning of the messages' ids, another for each chunk.
            name: how the parts' ids begin; they are numbered behind it.
            body_bytes_max: the largest body that a broker takes; asked when a message needs a chunk of its own, and
                raises NotSupported where there are none.
            empty: take empty bodies, too.
        """
        self._id_prefix, self._chunk_bytes, self._name = id_prefix, chunk_bytes, name
        self._body_bytes_max, self._empty = body_bytes_max, empty
        self._parts: dict[MessageQueue, _Part] = {}
        self.rows = 0
        """Number of messages, including those taken."""
        self.waits = 0
        """Bytes that wait to be taken."""

    @property
    def brokers(self) -> list[str]:
        """Brokers with parts, in the order of their first message."""
        return list(dict.fromkeys(queue.broker for queue in self._parts))

    def add(self, queue: MessageQueue, flag: int, body: bytes, properties: bytes) -> str:
        """Append a message to its queue's part; its id. Raises InvalidMessage: it is larger than its broker takes, or empty;
        NotSupported: the broker takes no chunk that is as large; LocalProtocolError: properties that no format carries."""
        part = self._parts.get(queue)
        batch = part.batch if part is not None else None
        before = batch.size if batch is not None else 0
        index = batch.add(flag, body, properties) if batch is not None else -1
        if batch is None or index < 0:
            if not (body or self._empty):
                raise InvalidMessage(f"a message for {queue} has an empty body")
            prefix = self._id_prefix()
            # A full chunk, or none yet: the message begins the next one.
            batch, before = self._batch(prefix, self._chunk_bytes), 0
            if (index := batch.add(flag, body, properties)) < 0:
                # Larger than a usual chunk: first one of CHUNK_BYTES_MAX, which every broker with transactions takes.
                batch = self._batch(prefix, CHUNK_BYTES_MAX)
                index = batch.add(flag, body, properties)
            if index < 0:
                # Larger than that: a chunk of its own, which older brokers of ours refuse.
                self._check_body(f"a message for {queue}", queue, len(body))
                batch = self._batch(prefix, _ANY_SIZE)
                index = batch.add(flag, body, properties)
            part = self._part(queue)
            part.close_chunk()
            part.batch, part.prefix = batch, prefix.decode()
        assert part is not None
        self.waits += batch.size - before
        self.rows += 1
        # No other message may share a chunk of that size.
        if batch.size > CHUNK_BYTES_MAX:
            part.close_chunk()
        return f"{part.prefix}{index:04X}"

    def add_rows(self, queue: MessageQueue, columns: hot.RowColumns, rows: memoryview) -> None:
        """Append the messages of these rows to their queue's part. `rows`: row numbers, a view of C ints.

        Raises InvalidMessage: one is larger than its broker takes, or empty; NotSupported: the broker takes no chunk that is as
        large; those before it were added.
        """
        part, done = self._part(queue), 0
        while done < len(rows):
            batch = part.batch or self._begun(part, self._chunk_bytes)
            before = batch.size
            after = batch.add_rows(columns, done, rows)
            # Not even the first row fits: it needs a larger chunk.
            if after == done and not batch.count:
                batch, before = self._begun_with(part, columns, rows[done : done + 1]), 0
                after = done + 1
            self.waits += batch.size - before
            self.rows += after - done
            if after < len(rows) or batch.size > CHUNK_BYTES_MAX:
                part.close_chunk()
            done = after

    def _begun_with(self, part: _Part, columns: hot.RowColumns, row: memoryview) -> hot.Batch:
        """A chunk that begins with a message for which a common one is too small."""
        batch = self._begun(part, CHUNK_BYTES_MAX)
        if batch.add_rows(columns, 0, row):
            return batch
        body_bytes, text_bytes = columns.sizes(row[0])
        what = f"row {row[0]}: a message for {part.queue}"
        if not (body_bytes or self._empty):
            raise InvalidMessage(f"{what} has an empty body")
        if body_bytes + text_bytes + BATCH_ENTRY_BYTES_MIN + _ID_BYTES + 1 > CHUNK_BYTES_MAX:
            self._check_body(what, part.queue, body_bytes)
            batch = self._begun(part, _ANY_SIZE)
            if batch.add_rows(columns, 0, row):
                return batch
        raise InvalidMessage(
            f"{what} has {text_bytes} bytes of properties, with its id it may have {PROPERTIES_BYTES_MAX}: send a reference to "
            "the data"
        )

    def _check_body(self, what: str, queue: MessageQueue, size: int) -> None:
        """Raises InvalidMessage, NotSupported: its broker does not take a body of this size, in a chunk of its own."""
        limit = self._body_bytes_max(queue.broker)
        if size > limit:
            raise InvalidMessage(
                f"{what} has a body of {size} bytes, the limit is {limit}: raise maxMessageSize at the broker, or send a "
                "reference to the data"
            )

    def _begun(self, part: _Part, chunk_bytes: int) -> hot.Batch:
        part.close_chunk()
        prefix = self._id_prefix()
        part.batch, part.prefix = self._batch(prefix, chunk_bytes), prefix.decode()
        return part.batch

    def _batch(self, prefix: bytes, chunk_bytes: int) -> hot.Batch:
        return hot.Batch(prefix, chunk_bytes, self._empty)

    def _part(self, queue: MessageQueue) -> _Part:
        part = self._parts.get(queue)
        if part is None:
            part = self._parts[queue] = _Part(f"{self._name}{len(self._parts)}", queue)
        return part

    def fullest(self) -> str:
        """Return the broker with the most bytes waiting."""
        waits: dict[str, int] = {}
        for part in self._parts.values():
            waits[part.queue.broker] = waits.get(part.queue.broker, 0) + part.waits
        return max(waits, key=lambda broker: waits[broker])

    def take(self, broker: str) -> tuple[Chunk, ...]:
        """Take chunks for one request to `broker`, of the parts with the most bytes first."""
        return self._taken(broker, last=False)

    def rest(self, broker: str) -> tuple[tuple[Chunk, ...], ...]:
        """Take all that is left for `broker`, one item per request, with the seals of the parts."""
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
                # The first chunk goes in any case: a large one has a request of its own.
                if chunks and size + len(part.waiting[0][0]) > REQUEST_BYTES:
                    break
                chunks.append(part.take(last=last))
                size += len(chunks[-1].body)
        self.waits -= size
        return tuple(chunks)

    def unsealed(self, broker: str) -> tuple[ManifestPart, ...]:
        """Return parts of `broker` whose last chunk had no seal: each needs a SEAL request."""
        return tuple(
            one
            for part, one in zip(self._parts.values(), self.manifest(), strict=True)
            if part.queue.broker == broker and not part.sealed
        )

    def manifest(self) -> tuple[ManifestPart, ...]:
        """Return all parts with the seals of their taken chunks; at the end, the decision's manifest."""
        return tuple(
            ManifestPart(part.queue.broker, part.name, part.queue.topic, part.queue.queue_id, part.seal)
            for part in self._parts.values()
        )
