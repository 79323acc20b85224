"""Records made of requests: properties that the broker adds, index keys, and the place of delayed messages.

As in RocketMQ, a delayed record lies in queue `level - 1` of SCHEDULE_TOPIC_XXXX, with the time of delivery in place of the tag
hash in its consume-queue unit, until `metaq.broker.delays.schedule` copies it to the topic and queue it names.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from metaq.broker.requests import Send
from metaq.errors import Reason, Refused
from metaq.model import SysFlag
from metaq.model import properties as props
from metaq.model.topics.system import SCHEDULE_TOPIC
from metaq.store.log.writer import PutRecord
from metaq.wire.record import HOST_V6, copy_mark, tags_code

SENDER_FLAGS = 0x700 | int(SysFlag.COMPRESSED | SysFlag.MULTI_TAGS)
"""Bits of SYSFLAG taken from the sender: compression (0x700 its type) and multi-tags. The broker sets the others itself."""


def delay_level(pairs: Mapping[str, str], levels: int) -> int:
    """Return the delay level of the property DELAY, at most `levels`; 0: none, or not a number."""
    text = pairs.get(props.DELAY, "0")
    # RocketMQ clamps a level above the last one; fewer than 10 digits keep hostile text from being parsed as a huge number.
    return min(int(text), levels) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def delayed_until(
    pairs: MutableMapping[str, str], topic: str, queue_id: int, level: int, due_ms: int
) -> tuple[str, int, int]:
    """Note the destination in REAL_TOPIC and REAL_QID of `pairs`. Returns (topic, queue id, tags code) of the delayed record."""
    pairs[props.REAL_TOPIC], pairs[props.REAL_QUEUE_ID] = topic, str(queue_id)
    return SCHEDULE_TOPIC, level - 1, due_ms


def index_keys(topic: str, pairs: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the index keys `topic#key`: of the unique id first, then of each blank-separated key, in RocketMQ's order."""
    unique = pairs.get(props.UNIQUE_ID)
    words = ([unique] if unique else []) + [word for word in pairs.get(props.KEYS, "").split(" ") if word]
    return tuple(f"{topic}#{word}".encode() for word in words)


def property_bytes(pairs: Mapping[str, str], stored: bytes | None = None) -> bytes:
    """Encode properties.

    Args:
        stored: of a copy, the text of the copied record: taken unchanged where that of `pairs` is too long.

    Raises Refused ILLEGAL_MESSAGE above the format's 32767 bytes.
    """
    text = props.join(pairs).encode()
    if len(text) > props.PROPERTIES_BYTES_MAX:
        # A byte that is not UTF-8 becomes three, so that a copy may be longer though nothing was added.
        if stored is not None:
            return stored
        raise Refused(
            Reason.ILLEGAL_MESSAGE,
            f"properties of {len(text)} bytes, the limit is {props.PROPERTIES_BYTES_MAX}",
        )
    return text


def put_record(
    topic: str,
    queue_id: int,
    body: bytes,
    pairs: Mapping[str, str],
    *,
    flag: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    reconsume_times: int = 0,
    tags: int | None = None,
    copy_of: int | None = None,
    stored: bytes | None = None,
) -> PutRecord:
    """Make a record to store.

    Args:
        tags: the tags code, where it is not the hash of TAGS.
        copy_of: LogOffset of the record that this one replaces: one that was due, or that a consumer sent back.
        stored: as `property_bytes`.
    """
    v6 = int(SysFlag.BORN_HOST_V6) if len(born_host) == HOST_V6 else 0
    return PutRecord(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=property_bytes(pairs, stored),
        flag=flag,
        # A sender's transaction bits and host bits must not reach the log.
        sys_flag=sys_flag & SENDER_FLAGS | v6,
        born_ms=born_ms,
        born_host=born_host,
        reconsume_times=reconsume_times,
        # PREPAREDTRANSACTIONOFFSET is free in such records: the mark lets a start see which copies a crash had left.
        prepared_offset=0 if copy_of is None else copy_mark(copy_of),
        tags_code=tags_code(pairs.get(props.TAGS)) if tags is None else tags,
        keys=index_keys(topic, pairs),
    )


def sent_record(
    send: Send, topic: str, queue_id: int, pairs: Mapping[str, str], *, tags: int | None = None
) -> PutRecord:
    """Make the record of a single send, for this topic and queue and with these properties. `tags`: as `put_record`."""
    return put_record(
        topic,
        queue_id,
        send.body,
        pairs,
        flag=send.flag,
        sys_flag=send.sys_flag,
        born_ms=send.born_ms,
        born_host=send.born_host,
        reconsume_times=send.reconsume_times,
        tags=tags,
    )
