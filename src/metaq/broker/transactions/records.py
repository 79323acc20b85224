"""Records of transactions: half messages, committed messages and op records (docs/formats/transactions.md).

A half message lies in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC; REAL_TOPIC and REAL_QID name its destination. Each check writes it
again as a new *generation*. All generations of a transaction share their *origin*, the QueueOffset of the first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

from metaq.broker.log.records import SENDER_FLAGS, index_keys, property_bytes, put_record
from metaq.errors import Reason, Refused
from metaq.model import StoredMessage, SysFlag
from metaq.model import properties as props
from metaq.model.topics.system import CHECK_MAX_TOPIC, HALF_TOPIC, OP_TOPIC
from metaq.store.log.writer import PutRecord
from metaq.wire.record import HOST_V4, HOST_V6, tags_code

OP_TAG: Final = "d"
_OP_PROPERTIES: Final = {props.WAIT: "true", props.TAGS: OP_TAG}
PROPERTIES_BYTES_KEPT: Final = 128
"""Bytes of property text left free for the counter and the origin that checks add."""
OP_PROPERTIES_TEXT: Final = property_bytes(_OP_PROPERTIES)
OP_TAGS_CODE: Final = tags_code(OP_TAG)
_WHOLE: Final = 1 << 63

_BEFORE_HOST = struct.Struct(">I32xi")
"""TOTALSIZE, SYSFLAG; BORNHOST follows."""


def is_transactional(pairs: Mapping[str, str]) -> bool:
    """Return whether the sender wants a half message: Java's `parseBoolean` of TRAN_MSG."""
    return pairs.get(props.TRANSACTION_PREPARED, "").lower() == "true"


def half_properties(pairs: MutableMapping[str, str], topic: str, queue_id: int, group: str) -> None:
    """Set producer group and destination in a half message's properties. Transactional messages ignore a delay.

    Raises Refused ILLEGAL_MESSAGE: no producer group, so nobody could end it, or no room for the properties that checks add.
    """
    pairs.pop(props.DELAY, None)
    for name in (props.CHECK_TIMES, props.PREPARED_QUEUE_OFFSET):
        pairs.pop(name, None)  # set by the broker only: a forged origin could end another's transaction
    pairs.setdefault(props.PRODUCER_GROUP, group)
    if not pairs[props.PRODUCER_GROUP]:
        raise Refused(
            Reason.ILLEGAL_MESSAGE,
            f"a half message for topic {topic} names no producer group (property {props.PRODUCER_GROUP}): nobody could end it",
        )
    pairs[props.REAL_TOPIC], pairs[props.REAL_QUEUE_ID] = topic, str(queue_id)
    size = len(property_bytes(pairs))
    if size > props.PROPERTIES_BYTES_MAX - PROPERTIES_BYTES_KEPT:
        raise Refused(
            Reason.ILLEGAL_MESSAGE,
            f"properties of {size} bytes, a half message may have {props.PROPERTIES_BYTES_MAX - PROPERTIES_BYTES_KEPT}",
        )


def origin_of(half: StoredMessage) -> int:
    """Return the QueueOffset of the first generation."""
    return whole(half.properties.get(props.PREPARED_QUEUE_OFFSET), half.queue_offset)


def whole(text: str | None, otherwise: int) -> int:
    """Parse a property as a number of at least 0; return `otherwise` if it is none."""
    good = text is not None and text.isascii() and text.isdecimal() and len(text) < 20
    number = int(text) if good and text is not None else -1
    return number if 0 <= number < _WHOLE else otherwise


def destination(half: StoredMessage) -> tuple[str, int]:
    """Return topic and queue id of the destination. Raises Refused INVALID: the record names none."""
    topic, queue_id = half.properties.get(props.REAL_TOPIC, ""), whole(half.properties.get(props.REAL_QUEUE_ID), -1)
    if not topic or not 0 <= queue_id < 1 << 31:
        raise Refused(
            Reason.INVALID,
            f"the half message at log offset {half.log_offset} does not say for which topic and queue it is",
        )
    return topic, queue_id


def committed(half: StoredMessage, topic: str, queue_id: int) -> PutRecord:
    """Make the committed message: with the half message's properties unchanged, as RocketMQ does, and its LogOffset."""
    return PutRecord(
        topic=topic,
        queue_id=queue_id,
        body=half.body,
        properties=half.properties_raw,
        flag=half.flag,
        sys_flag=half.sys_flag & (SENDER_FLAGS | int(SysFlag.BORN_HOST_V6)) | int(SysFlag.COMMITTED),
        born_ms=half.born_ms,
        born_host=half.born_host_raw,
        reconsume_times=half.reconsume_times,
        prepared_offset=half.log_offset,
        tags_code=tags_code(half.properties.get(props.TAGS)),
        keys=index_keys(topic, half.properties),
    )


def op(slot: int, now_ms: int, host: bytes) -> PutRecord:
    """Make the op record that marks the half message at this QueueOffset as done."""
    return put_record(
        OP_TOPIC, 0, str(slot).encode(), _OP_PROPERTIES, flag=0, sys_flag=0, born_ms=now_ms, born_host=host
    )


def renewed(half: StoredMessage, *, checked: bool) -> PutRecord:
    """Make the next generation of a half message. `checked`: its producer is asked, which is counted."""
    pairs = dict(half.properties)
    pairs.setdefault(props.PREPARED_QUEUE_OFFSET, str(half.queue_offset))
    if checked:
        pairs[props.CHECK_TIMES] = str(whole(pairs.get(props.CHECK_TIMES), 0) + 1)
    else:
        pairs[props.WAIT] = "false"  # RocketMQ sets it in generations without a check only
    return _copy(half, HALF_TOPIC, pairs)


def given_up(half: StoredMessage) -> PutRecord:
    """Make the copy of a half message for TRANS_CHECK_MAX_TIME_TOPIC."""
    return _copy(half, CHECK_MAX_TOPIC, half.properties, half.properties_raw)


def resumed(kept: StoredMessage, newest: StoredMessage | None) -> PutRecord:
    """Make the next generation of a half message that was given up. `newest`: the generation before it, if known."""
    pairs = dict(kept.properties)
    pairs.pop(props.CHECK_TIMES, None)
    if newest is not None:
        pairs[props.PREPARED_QUEUE_OFFSET] = str(origin_of(newest))
    else:
        pairs.pop(props.PREPARED_QUEUE_OFFSET, None)
    return _copy(kept, HALF_TOPIC, pairs)


def _copy(half: StoredMessage, topic: str, pairs: Mapping[str, str], stored: bytes | None = None) -> PutRecord:
    return put_record(
        topic,
        0,
        half.body,
        pairs,
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_ms=half.born_ms,
        born_host=half.born_host_raw,
        reconsume_times=half.reconsume_times,
        copy_of=half.log_offset,
        stored=stored,
    )


def op_slots(records: Any) -> Iterator[tuple[int, int]]:
    """Yield LogOffset, and the QueueOffset in the body, of consecutive op records; -1 for a body that is no number."""
    place, end = 0, len(records)
    while place < end:
        size, sys_flag = _BEFORE_HOST.unpack_from(records, place)
        # Only the head and the body are decoded: a start may read millions of op records.
        start = place + 68
        # 68 bytes are the fields before the body's length without the two hosts.
        for bit in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6):
            start += HOST_V6 if sys_flag & bit else HOST_V4
        body_bytes = int.from_bytes(records[start : start + 4], "big")
        body = bytes(records[start + 4 : start + 4 + min(body_bytes, 20)])
        log_offset = int.from_bytes(records[place + 28 : place + 36], "big")
        yield log_offset, int(body) if body_bytes < 20 and body.isdigit() else -1
        place += size
