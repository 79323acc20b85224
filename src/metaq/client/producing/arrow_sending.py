"""Rows of Arrow tables, sent: built into batches in the caller's thread, with a bounded number of bytes under way.

A batch goes the way of all others (`metaq.client.producing.accumulator`): rows that name neither queue nor ordering key
rotate over the queues, several batches of a topic side by side; those of one queue go one batch after the other.

Needs pyarrow and numpy (`pip install 'pymetaq[arrow]'`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from msgspec import Struct

from metaq.client.arrow.compute import compute as pc
from metaq.client.arrow.rows import MessageRows, Numbers, bodies_of, check_columns, rows_of
from metaq.client.identity.options import checked_seconds
from metaq.client.producing.accumulator import Accumulator, BatchStream, Stay
from metaq.client.producing.arrow_sent import ArrowSent
from metaq.client.shared.futures import SendBatch
from metaq.errors import BufferFull, ClientClosed, ConfigError, InvalidMessage, RowsNotSent
from metaq.model import MessageQueue, SendStatus
from metaq.model.properties import PROPERTIES_BYTES_MAX

BATCH_BYTES: Final = 256 * 1024
UNDER_WAY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Unacknowledged bytes of one `send_arrow`."""
SLICE_ROWS: Final = 16 * 1024
SLICE_BYTES: Final = 64 * 1024 * 1024
"""Bounds of the rows that are checked and turned into property texts at a time: rows, and bytes."""


class RowOutlet(Struct, frozen=True):
    """What `ArrowSend` needs of its producer."""

    accumulator: Accumulator
    namespace: str
    check_open: Callable[[], None]
    """Raises ClientClosed, ClientForked."""
    queues: Callable[[str], list[MessageQueue]]
    """Returns the queues of a topic; blocks. Raises NoRoute."""
    wait_for_room: Callable[[], None] | None
    """Blocks until there is room; None: a lack of room is an error."""


class _Request(Struct, frozen=True):
    batch: SendBatch
    bytes: int
    first_row: int
    """The smallest of its rows' numbers in the whole table."""


class ArrowSend:
    """One `send_arrow`. `stop` may be called from any thread, the rest from one."""

    def __init__(self, outlet: RowOutlet, data: Any, topic: str | None, timeout: float | None) -> None:
        """Raises TypeError, ConfigError: nothing was sent."""
        if timeout is not None and not checked_seconds("timeout", timeout, least=0.0):
            raise ConfigError(f"timeout={timeout!r}: need a positive number of seconds")
        if topic is not None and not isinstance(topic, str):
            raise TypeError(f"topic is {topic!r}: pass its name, after the table")
        schema, self._batches = _opened(data)
        check_columns(schema, topic)
        if "delay_level" in schema.names:
            raise ConfigError(
                "there is a column delay_level, and what goes in batches cannot be delayed: leave it out, or send those "
                "messages by send(..., delay_level=)"
            )
        self._outlet, self._topic, self._timeout = outlet, topic, timeout
        self._limits = outlet.accumulator.limits
        self._bytes_max = min(UNDER_WAY_BYTES_MAX, self._limits.max_pending_bytes)
        self._under_way: deque[_Request] = deque()
        self._bytes = self._rows = self._requests = 0
        self._done_rows = 0
        """Every row before this number has been built into a request."""
        self._first_lost: int | None = None
        self._fault: Exception | None = None
        self._statuses: dict[SendStatus, int] = {}
        self._stopped = False

    def stop(self) -> None:
        """Send no further request; those under way go on."""
        self._stopped = True

    def run(self) -> ArrowSent:
        """Send all rows, and wait for all answers. Raises as `Producer.send_arrow`."""
        try:
            for batch in self._batches:
                for part in _slices(batch):
                    self._send(part)
                    self._done_rows += part.num_rows
        except Exception as error:  # noqa: BLE001  whatever the reader of the rows raises, too
            self._fault = self._fault or error
        # Also after a failure: the error says how many rows are stored.
        while self._under_way:
            self._settle()
        if self._fault is None:
            return ArrowSent(self._rows, self._requests, self._statuses)
        # Nothing was sent, so there is nothing to resume.
        if not self._requests:
            raise self._fault
        resume_at = self._done_rows if self._first_lost is None else min(self._done_rows, self._first_lost)
        raise RowsNotSent(self._fault, self._rows, resume_at) from self._fault

    def _send(self, part: pa.RecordBatch) -> None:
        try:
            self._send_rows(part)
        except InvalidMessage as fault:
            if fault is self._fault:  # What a broker says of an earlier request.
                raise
            place = f" (counted from row {self._done_rows} of all on)" if self._done_rows else ""
            raise InvalidMessage(f"{fault}{place}") from None

    def _send_rows(self, part: pa.RecordBatch) -> None:
        rows = rows_of(part, self._topic, self._outlet.namespace)
        self._check_sizes(part)
        accumulator = self._outlet.accumulator
        for topic, numbers in rows.topics:
            free, keyed, named = rows.by_binding(numbers)
            if len(free):
                self._fill(accumulator.stream(topic), rows, free)
            for some, stay in ((keyed, Stay.MAY_MOVE), (named, Stay.FIXED)):
                if not len(some):
                    continue
                queues = self._outlet.queues(topic)
                for queue, chosen in rows.by_queue(some, queues, queues[0]):
                    self._fill(accumulator.ordered_stream(queue, stay), rows, chosen)

    def _check_sizes(self, part: pa.RecordBatch) -> None:
        sizes, most = pc.binary_length(bodies_of(part)), self._limits.message_bytes_max
        if len(sizes) and pc.max(sizes).as_py() > most:
            row = pc.index(pc.greater(sizes, most), value=True).as_py()
            raise InvalidMessage(
                f"row {row}: the body has {sizes[row]} bytes, the limit is {most}: raise max_message_bytes here and "
                "maxMessageSize at the broker, or send a reference to the data"
            )

    def _fill(self, stream: BatchStream, rows: MessageRows, numbers: Numbers) -> None:
        """Fill as many requests as the rows of one stream need."""
        done, chosen = 0, numbers.data
        while done < len(numbers):
            batch = self._outlet.accumulator.new_batch(BATCH_BYTES)
            after = batch.add_rows(rows.columns, done, chosen)
            if after == done:  # Larger than a batch: alone.
                batch = self._outlet.accumulator.new_batch(self._limits.message_bytes_max + 2 * PROPERTIES_BYTES_MAX)
                after = done + batch.add_rows(rows.columns, 0, chosen[done : done + 1])
            if after == done:
                raise InvalidMessage(
                    f"row {int(numbers[done])}: tag, keys and properties together exceed "
                    f"{PROPERTIES_BYTES_MAX} bytes of UTF-8"
                )
            self._post(stream, batch, self._done_rows + int(numbers[done:after].min()))
            done = after

    def _post(self, stream: BatchStream, batch: SendBatch, first_row: int) -> None:
        # What is answered already is settled as well, so that its error ends the sending early.
        while self._under_way and (self._bytes > self._bytes_max or self._under_way[0].batch.settled):
            self._settle()
        if self._fault is not None:
            raise self._fault
        if self._stopped:
            raise ClientClosed("send_arrow was cancelled")
        self._outlet.check_open()
        body = batch.take()
        while True:
            try:
                self._outlet.accumulator.send_filled(stream, batch, body, self._timeout)
                break
            except BufferFull:
                if self._outlet.wait_for_room is None:
                    raise
                self._outlet.wait_for_room()
        self._under_way.append(_Request(batch, len(body), first_row))
        self._bytes += len(body)
        self._requests += 1

    def _settle(self) -> None:
        """Wait for the oldest request, and note its outcome."""
        request = self._under_way[0]
        batch = request.batch
        batch.wait(None)
        self._under_way.popleft()
        self._bytes -= request.bytes
        if batch.stored is not None:
            self._note(batch.stored.status, batch.count)
            return
        for index in range(batch.count):
            if (error := batch.error(index)) is None:
                self._note(batch.receipt(index).status, 1)
            else:
                self._fault = self._fault or error
                lost = request.first_row
                self._first_lost = lost if self._first_lost is None else min(lost, self._first_lost)

    def _note(self, status: SendStatus, rows: int) -> None:
        self._rows += rows
        self._statuses[status] = self._statuses.get(status, 0) + rows


def _opened(data: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter((data,))
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches())
    if not isinstance(data, pa.RecordBatchReader):
        if not hasattr(data, "__arrow_c_stream__"):
            raise TypeError(
                f"cannot send a {type(data).__name__} as rows: pass a pyarrow Table, RecordBatch or RecordBatchReader, or a frame "
                "that Arrow can read (Polars, DuckDB, pandas 2.2 or newer)"
            )
        data = pa.RecordBatchReader.from_stream(data)
    return data.schema, iter(data)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = batch.num_rows
    # A table may be far larger than what may be under way.
    step = max(1, min(SLICE_ROWS, SLICE_BYTES * count // max(1, batch.nbytes)))
    for start in range(0, count, step):
        yield batch.slice(start, step)
