"""One fetched block of frames, message by message: what the listener gets, and how far that came. No thread, no loop."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from metaq.errors import BadRequest, ClientError
from metaq.metaq1.consuming.message_ids import MessageIdCache
from metaq.metaq1.model.partition import Partition
from metaq.metaq1.model.received import ReceivedMessage
from metaq.wire.metaq1.frame import HAS_ATTRIBUTE, HEAD, HEAD_BYTES, checksum, split_attribute

MessageFilter = Callable[[str, ReceivedMessage], bool]
"""Says of a group and a message whether the listener is to have it. An error counts as no."""
_unpack = HEAD.unpack_from


class Batch:
    """What a listener says of the messages since the last acknowledged one. Made anew for each call of a fetch."""

    __slots__ = ("acked", "rolled_back")

    def __init__(self) -> None:
        self.acked = self.rolled_back = False

    def ack(self) -> None:
        if self.rolled_back:
            raise ClientError("the batch was rolled back in this call of the listener: it cannot be acknowledged")
        self.acked = True

    def rollback(self) -> None:
        if self.acked:
            raise ClientError("the batch was acknowledged in this call of the listener: it cannot be rolled back")
        self.rolled_back = True


class Delivery:
    """Iterate over the messages of one block that the listener is to have; the next step says that it has processed the last one.
    `fail` says that it has not.

    Args:
        data: frames from `offset` on; the last one may be cut off.
        bytes_max: longest body that is taken.
        batch: None: each message is acknowledged when it is processed.
        unsettled: ids of processed messages of this partition that are not acknowledged; belongs to the partition.
    """

    def __init__(
        self,
        group: str,
        topic: str,
        partition: Partition,
        offset: int,
        data: bytes,
        ids: MessageIdCache,
        *,
        bytes_max: int,
        accept: MessageFilter | None = None,
        batch: Batch | None = None,
        unsettled: list[int] | None = None,
    ) -> None:
        self.group, self.topic, self.partition, self.offset, self.data = group, topic, partition, offset, data
        self._ids, self._bytes_max, self._accept = ids, bytes_max, accept
        self.batch = batch
        self._unsettled = unsettled if unsettled is not None else []
        self.position = 0
        """Bytes of `data` that are processed."""
        self.message_id = -1
        """Of the last processed message; -1: there is none."""
        self.whole = 0
        """Whole messages that were looked at."""
        self.error: BaseException | None = None
        """Why the message at `position` is not processed."""
        self.is_failed = False
        self.is_stopped = False
        """No further message is begun."""
        self.damage: str | None = None
        """The frame at `position` is none."""
        self.filter_error: Exception | None = None
        """The first error of the filter."""

    def fail(self, error: BaseException | None) -> None:
        """The message that came last is not processed."""
        self.error, self.is_failed = error, True

    def __iter__(self) -> Iterator[ReceivedMessage]:
        group, topic, partition, ids, accept = self.group, self.topic, self.partition, self._ids, self._accept
        data, base, batch, end = self.data, self.offset, self.batch, len(self.data)
        seen, add = ids.seen, ids.add
        while end - self.position >= HEAD_BYTES and not self.is_stopped:
            start = self.position
            size, crc, message_id, flag = _unpack(data, start)
            if not 0 <= size <= self._bytes_max:
                self.damage = f"it says that its body has {size} bytes (max_read_buffer={self._bytes_max})"
                return
            first = start + HEAD_BYTES
            after = first + size
            if after > end:
                return
            body = data[first:after]
            if checksum(body) != crc:
                self.damage = f"its checksum is {checksum(body)} in place of {crc}"
                return
            self.whole += 1
            attribute: str | None = None
            if flag & HAS_ATTRIBUTE:
                attribute, body = _attribute_of(flag, body)
            message = ReceivedMessage(
                topic, body, attribute, message_id, flag, partition, base + start, after - start, batch
            )
            if not seen(group, message_id):
                if accept is None or self._accepts(accept, message):
                    yield message
                    if message.rollback_only:
                        self.fail(None)
                        return
                if batch is None:
                    add(group, message_id)
                else:
                    self._unsettled.append(message_id)
            self.position, self.message_id = after, message_id
            if batch is not None and (batch.acked or batch.rolled_back):
                return

    def _accepts(self, accept: MessageFilter, message: ReceivedMessage) -> bool:
        try:
            return bool(accept(self.group, message))
        except Exception as error:  # noqa: BLE001  as in Java: it counts as no
            self.filter_error = self.filter_error or error
            return False

    def first(self) -> ReceivedMessage | None:
        """Return the message at `position` for the reject handler; None: there is no whole one."""
        return next(iter(self), None)

    def skip(self, message: ReceivedMessage) -> None:
        """The message that `first` has returned is done with."""
        self._ids.add(self.group, message.message_id)
        self.position, self.message_id = message.offset - self.offset + message.size, message.message_id

    def acknowledge(self) -> None:
        """Remember the ids of all messages that are acknowledged now."""
        for message_id in self._unsettled:
            self._ids.add(self.group, message_id)
        self._unsettled.clear()

    def forget(self) -> None:
        """What was not acknowledged will be delivered again."""
        self._unsettled.clear()


def _attribute_of(flag: int, body: bytes) -> tuple[str | None, bytes]:
    try:
        attribute, payload = split_attribute(flag, body)
    except (BadRequest, struct.error):
        # The flag is the sender's own word; the bytes are whole.
        return None, body
    return (None if attribute is None else attribute.decode("utf-8", "replace")), payload
