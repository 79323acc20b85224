"""The pure-Python fallback of the compiled extension: puts of MetaQ 1.x. See __init__.pyi for what each name
promises."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any, Final

from metaq.wire.hot.fallback.frames import Replies
from metaq.wire.hot.fallback.positions import FRAME_HEAD_BYTES, PositionTail
from metaq.wire.hot.fallback.tails import (
    SIZE,
    STOP_END,
    STOP_SLOW,
    AppendOutcome,
    LogTail,
    QueueTail,
    no_room,
    tags_code_of,
)
from metaq.wire.record import HEAD_V4, HOST_V4, MAGIC, RECORD_BYTES_MIN, crc31

_LENGTH = struct.Struct(">h")
_PUT: Final = re.compile(
    rb"put ([^ ]{1,127}) (-?[0-9]{1,10}) ([0-9]{1,10}) (-?[0-9]{1,10})(?: (-?[0-9]{1,10}))? (-?[0-9]{1,10})\r\n"
)
# An attribute of these characters is a legal tag of RocketMQ's as well; others are left to the slow path.
_TAG: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_TOPIC_BYTES_MAX: Final = 127
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_MASK: Final = (1 << 64) - 1


class PartitionGate:
    __slots__ = ("_chance", "_grown", "body_bytes_max", "positions", "put_bytes", "puts", "queues", "topic")

    def __init__(
        self,
        topic: bytes,
        queues: Iterable[QueueTail],
        positions: Iterable[PositionTail | None],
        body_bytes_max: int,
        chance: int,
    ) -> None:
        if not 1 <= len(topic) <= _TOPIC_BYTES_MAX:
            raise ValueError(f"topic {topic!r} has {len(topic)} bytes, allowed are 1 to {_TOPIC_BYTES_MAX}")
        self.topic, self.body_bytes_max, self._chance = topic, body_bytes_max, chance
        self.queues, self.positions = tuple(queues), tuple(positions)
        self.puts = self.put_bytes = 0
        self._grown: dict[int, int] = {}
        if len(self.queues) != len(self.positions) or not self.queues:
            raise ValueError(f"{len(self.queues)} queues with {len(self.positions)} positions")
        for queue, tail in zip(self.queues, self.positions, strict=True):
            if not isinstance(queue, QueueTail) or not (tail is None or isinstance(tail, PositionTail)):
                raise TypeError(f"{queue!r} and {tail!r} are no QueueTail and PositionTail")

    def grew(self, partition: int, used: list[PartitionGate]) -> None:
        """Count one more message."""
        if not self._grown:
            used.append(self)
        self._grown[partition] = self._grown.get(partition, 0) + 1

    def take_grown(self) -> list[tuple[int, int]]:
        grown, self._grown = self._grown, {}
        return sorted(grown.items())

    def any_queue(self) -> int:
        # The low bits of a linear congruential generator repeat after a few steps: the high ones are used.
        self._chance = self._chance * 6364136223846793005 + 1442695040888963407 & _MASK
        return (self._chance >> 33) % len(self.queues)


_Line = tuple[bytes, int, int, int, int, int, int]
"""A plain put: (topic, partition, flag, checksum, opaque, start and stop of its body)."""


def _plain_put(raw: bytes, start: int) -> _Line | None:
    found = _PUT.match(raw, start)
    if found is None:
        return None
    topic, *words = found.groups()
    partition, size, flag, checksum, opaque = [-1 if word is None else int(word) for word in words]
    if not all(_INT_MIN <= number <= _INT_MAX for number in (partition, size, flag, checksum, opaque)):
        return None
    stop = found.end() + size
    return None if stop > len(raw) else (topic, partition, flag, checksum, opaque, found.end(), stop)


def _simple_tag(body: bytes) -> bytes | None:
    """Return the attribute at the start of a body; None if there is none, or none that is surely a tag."""
    size = int.from_bytes(body[:4], "big", signed=True) if len(body) > 4 else 0
    return body[4 : 4 + size] if 1 <= size <= len(body) - 4 and _TAG.fullmatch(body, 4, 4 + size) else None


def put_lines(
    data: Any,
    start: int,
    gates: dict[bytes, PartitionGate],
    log: LogTail,
    first_id: int,
    ids: int,
    now_ms: int,
    born_host: bytes,
    replies: Replies,
    outcome: AppendOutcome,
    used: list[PartitionGate],
) -> None:
    outcome.touched = touched = []
    outcome.stop, outcome.queue, outcome.needed, outcome.messages, outcome.size = STOP_END, None, 0, 0, 0
    outcome.row = start
    raw, first_end, store_ms = bytes(data), log.end, max(now_ms, log.store_ms)
    if not 0 <= start <= len(raw):
        raise IndexError(f"place {start} of {len(raw)}")
    if len(born_host) != HOST_V4 or len(log.store_host) != HOST_V4:
        outcome.stop = STOP_SLOW
        return
    while outcome.messages < ids and outcome.row < len(raw):
        line = _plain_put(raw, outcome.row)
        gate = None if line is None else gates.get(line[0])
        if line is None or gate is None:
            outcome.stop = STOP_SLOW
            break
        _, partition, flag, checksum, opaque, body_at, stop = line
        # Limits, checksum and positions are those of the body as it was sent, its attribute included.
        sent = body = raw[body_at:stop]
        if partition == -1:
            partition = gate.any_queue()
        tag: bytes | None = b""
        # Bit 0: the body begins with an attribute, which becomes the record's tag; positions count it all the same.
        if flag & 1:
            tag = _simple_tag(sent)
            body = sent[4 + len(tag or b"") :]
        positions = gate.positions[partition] if 0 <= partition < len(gate.queues) else None
        if (
            positions is None
            or tag is None
            or len(sent) > min(gate.body_bytes_max, log.message_bytes_max)
            # Messages of RocketMQ clients came in between, whose positions have not been computed yet.
            or positions.next_offset != gate.queues[partition].next_offset
            or positions.room() < 1
            or checksum not in {-1, crc31(sent)}
        ):
            outcome.stop = STOP_SLOW
            break
        queue, message_id = gate.queues[partition], first_id + outcome.messages
        pairs = [b"TAGS\x01" + tag] if tag else []
        pairs.append(b"METAQ_ID\x01%d" % message_id)
        if log.cluster:
            pairs.append(log.cluster)
        properties = b"\x02".join(pairs)
        size = RECORD_BYTES_MIN + len(gate.topic) + len(body) + len(properties)
        if no_room(size, 1, 0, queue, log, None, outcome):
            break
        offset = log.end
        at = offset - log.base
        log.view[at : at + size] = b"".join((
            HEAD_V4.pack(
                0, MAGIC, crc31(body), queue.queue_id, flag & ~1, queue.next_offset, offset, 0, now_ms, born_host, store_ms,
                log.store_host, 0, 0, len(body),
            ),
            body, bytes([len(gate.topic)]), gate.topic, _LENGTH.pack(len(properties)), properties,
        ))  # fmt: skip
        # TOTALSIZE is written last: readers take a record with size 0 for the log's end.
        SIZE.pack_into(log.view, at, size)
        log.end, log.store_ms = offset + size, store_ms
        queue.put(offset, size, tags_code_of(tag) if tag else 0)
        text = b"%d %d %d" % (message_id, partition, positions.next_position)
        replies.parts.append(b"result 200 %d %d\r\n%b" % (len(text), opaque, text))
        positions.put(FRAME_HEAD_BYTES + len(sent))
        gate.grew(partition, used)
        gate.puts += 1
        gate.put_bytes += len(sent)
        outcome.messages += 1
        outcome.row = stop
        outcome.size = log.end - first_end
        if queue.watched and queue not in touched:
            touched.append(queue)
