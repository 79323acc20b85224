"""The pure-Python fallback of the compiled extension: messages that a consumer gave back. See __init__.pyi for what
each name promises."""

from __future__ import annotations

import re
from typing import Final

from metaq.model.message import FIRST_RETRY_LEVEL
from metaq.wire.hot.fallback.tails import SENDER_FLAGS, AppendOutcome, DelayGate, IndexTail, LogTail, key_hash
from metaq.wire.record import BLANK_BYTES_MIN, HOST_V4, RECORD_BYTES_MIN, TOPIC_BYTES_MAX, Broken, encode_record, split

# Above these limits a message is given back by the slow path.
_KEYS_MAX: Final = 4
_PIECES_MAX: Final = 24
_TEXT_MAX: Final = 1536
_CLIENT_TOPIC: Final = re.compile(rb"(?!rmq_sys_METAQ_)[%|a-zA-Z0-9_-]{1,127}").fullmatch


def give_back(
    log: LogTail,
    index: IndexTail | None,
    delays: DelayGate,
    log_offset: int,
    topic: bytes,
    queue_id: int,
    retries_max: int,
    level: int,
    now_ms: int,
    outcome: AppendOutcome,
) -> tuple[int, int, int, int] | None:
    outcome.touched, outcome.messages, outcome.size = [], 0, 0
    place = log_offset - log.base
    if place < 0 or log_offset > log.end - RECORD_BYTES_MIN or not log.room() or level < 0:
        return None
    if not 1 <= len(topic) <= TOPIC_BYTES_MAX or len(log.store_host) != HOST_V4:
        return None
    try:
        (
            _, _, _, flag, _, own_offset, sys_flag, born_ms, _, born_host, _, store_host, reconsume_times, start, stop, _,
            own_topic, text_start, text_end,
        ) = split(log.view, place, log.end - log.base)  # fmt: skip
    except Broken:
        return None
    if own_offset != log_offset or sys_flag & 0x30 or reconsume_times >= retries_max or not _CLIENT_TOPIC(own_topic):
        return None
    # As in RocketMQ: level 0 leaves it to the broker, which waits a level longer with each retry.
    level = min(level or FIRST_RETRY_LEVEL + reconsume_times, delays.levels)
    if level not in delays.places:
        return None
    pairs = _pairs(bytes(log.view[text_start:text_end]))
    if pairs is None:
        return None
    # Topic and id of the first delivery stay through all retries: clients show the message under them.
    pairs.setdefault(b"RETRY_TOPIC", bytes(own_topic))
    pairs.setdefault(b"ORIGIN_MESSAGE_ID", f"{store_host.hex()}{log_offset:016x}".upper().encode())
    pairs |= {b"WAIT": b"false", b"DELAY": b"%d" % level, b"REAL_TOPIC": topic, b"REAL_QID": b"%d" % queue_id}
    words = [word for word in pairs.get(b"KEYS", b"").split(b" ") if word]
    if unique := pairs.get(b"UNIQ_KEY"):
        words.insert(0, unique)
    properties = b"\x02".join(b"%b\x01%b" % pair for pair in pairs.items())
    queue, delay_ms = delays.places[level]
    waiting = delays.waiting
    size = RECORD_BYTES_MIN + len(waiting.topic) + stop - start + len(properties)
    if (
        len(words) > _KEYS_MAX
        or properties.endswith(b"\0")
        or size + BLANK_BYTES_MIN > log.room()
        or queue.room() < 1
        or (index is not None and len(words) > index.room())
    ):
        return None
    queue_offset = queue.next_offset
    log.store_ms = store_ms = max(now_ms, log.store_ms)
    record = encode_record(
        topic=waiting.topic, queue_id=queue.queue_id, queue_offset=queue_offset, log_offset=log.end, flag=flag,
        sys_flag=sys_flag & SENDER_FLAGS, born_ms=born_ms, born_host=born_host, store_ms=store_ms,
        store_host=log.store_host, reconsume_times=reconsume_times + 1, prepared_offset=-1 - log_offset,
        body=log.view[start:stop], properties=properties,
    )  # fmt: skip
    queue.put(offset := log.write(record), size, now_ms + delay_ms)
    if index is not None:
        for word in words:
            index.put_hash(key_hash(waiting.key_prefix, word), offset, store_ms)
        index.put_header()
    outcome.messages, outcome.size = 1, size
    if queue.watched:
        outcome.touched.append(queue)
    return offset, queue_offset, store_ms, level


def _pairs(text: bytes) -> dict[bytes, bytes] | None:
    """Return the properties; None if one is there twice, or they are many or malformed."""
    if text.endswith(b"\x02"):
        text = text[:-1]
    if not 0 < len(text) <= _TEXT_MAX:
        return None
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    pieces = [piece.partition(b"\x01") for piece in text.split(b"\x02")]
    pairs = {name: value for name, _, value in pieces}
    if (
        len(pairs) != len(pieces)
        or len(pieces) > _PIECES_MAX
        or not all(name and value for name, value in pairs.items())
    ):
        return None
    return pairs
