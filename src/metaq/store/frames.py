"""Frames of 1.x from the records of a queue."""

from __future__ import annotations

import contextlib
from bisect import bisect_right

from metaq.errors import BadRequest, ConfigError
from metaq.model import StoredMessage
from metaq.model import properties as props
from metaq.model.partition import HAS_ATTRIBUTE, foreign_id
from metaq.options import MIB
from metaq.store.consume_queue import ConsumeQueue
from metaq.store.message_store import MessageStore
from metaq.wire.compression import decompress
from metaq.wire.hot import crc31, decode_records

EXPANDED_BYTES_MAX = 16 * MIB


def frame(message: StoredMessage, broker_id: int) -> bytes:
    """A message as 1.x clients see it."""
    pairs = message.properties
    body, flag = message.body, message.flag & ~HAS_ATTRIBUTE
    with contextlib.suppress(BadRequest, ConfigError):  # what cannot be expanded is handed out as it is
        body = decompress(body, message.sys_flag, EXPANDED_BYTES_MAX)
    attribute = pairs.get(props.METAQ_ATTRIBUTE) or pairs.get(props.TAGS)
    if props.METAQ_BLOCK in pairs:
        flag |= HAS_ATTRIBUTE
    elif attribute:
        text = attribute.encode()
        flag, body = flag | HAS_ATTRIBUTE, len(text).to_bytes(4, "big") + text + body
    told = pairs.get(props.METAQ_ID, "")
    number = int(told) if told.removeprefix("-").isdecimal() else foreign_id(broker_id, message.log_offset)
    head = (
        len(body).to_bytes(4, "big")
        + crc31(body).to_bytes(4, "big")
        + number.to_bytes(8, "big", signed=True)
        + flag.to_bytes(4, "big", signed=True)
    )
    return head + body


class QueueFrames:
    """The frames of one queue. Positions are computed from its records, all of them: the seam for `store.positions`."""

    def __init__(self, store: MessageStore, queue: ConsumeQueue, broker_id: int) -> None:
        self._store, self._queue, self._broker_id = store, queue, broker_id
        self._first = queue.min_offset
        self._ends = [0]

    def _frame(self, queue_offset: int) -> bytes:
        pulled = self._store.pull(self._queue.topic, self._queue.queue_id, queue_offset, 1)
        if pulled.job is not None:
            pulled = pulled.job()
        message = decode_records(pulled.body, 0, len(pulled.body), StoredMessage, "", 0, 0)[0]
        return frame(message, self._broker_id)

    def _catch_up(self) -> None:
        while (offset := self._first + len(self._ends) - 1) < self._queue.max_offset:
            self._ends.append(self._ends[-1] + len(self._frame(offset)))

    @property
    def min(self) -> int:
        """Position of the first frame that is kept."""
        return self.position(self._queue.min_offset)

    @property
    def max(self) -> int:
        """Position behind the last one."""
        return self.position(self._queue.max_offset)

    def position(self, queue_offset: int) -> int:
        """Where the frame of a message begins."""
        self._catch_up()
        return self._ends[queue_offset - self._first]

    def at(self, position: int) -> tuple[int, int]:
        """The queue offset of the frame that holds a position, and where the frame begins."""
        self._catch_up()
        row = bisect_right(self._ends, position) - 1
        return self._first + row, self._ends[row]

    def read(self, position: int, size: int) -> bytes:
        """Bytes from a position on, at most `size`, whole frames or not."""
        queue_offset, start = self.at(position)
        parts, have = list[bytes](), start - position
        while have < size and queue_offset < self._queue.max_offset:
            parts.append(self._frame(queue_offset))
            have += len(parts[-1])
            queue_offset += 1
        return b"".join(parts)[position - start :][:size]
