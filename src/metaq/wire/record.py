"""The stored record, the batch body, the offset id and their hashes, one at a time (docs/formats/record.md, batch.md).

`metaq.wire.hot` does the same for whole runs of records.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

from metaq.errors import BadRequest, LocalProtocolError, RemoteProtocolError
from metaq.model import StoredMessage, SysFlag
from metaq.model.properties import PROPERTIES_BYTES_MAX

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # no wheel for this platform: the same checksum, a tenth of the speed
    from zlib import crc32 as _crc32

MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194
"""Magic of the record that fills the rest of a log file."""
BLANK_BYTES_MIN: Final = 8
RECORD_BYTES_MIN: Final = 91
"""TOTALSIZE of a record with two IPv4 hosts, an empty body, topic and property text."""
TOPIC_BYTES_MAX: Final = 127
_MASK32: Final = 0xFFFFFFFF

HOST_V4: Final = 8
HOST_V6: Final = 20
_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
"""As plain numbers: `&` with an enum flag makes an object each time, which costs a microsecond."""

HEAD: Final = struct.Struct(">IIIiiqqiq")
"""TOTALSIZE, MAGICCODE, BODYCRC, QUEUEID, FLAG, QUEUEOFFSET, PHYSICALOFFSET, SYSFLAG, BORNTIMESTAMP."""
HEAD_V4: Final = struct.Struct(">IIIiiqqiq8sq8siqi")
"""The record up to its body, with IPv4 hosts: HEAD, BORNHOST, STORETIMESTAMP, STOREHOST, RECONSUMETIMES,
PREPAREDTRANSACTIONOFFSET, BODYLENGTH."""
_STORE_TIME = struct.Struct(">q")
_BEFORE_BODY = struct.Struct(">iqi")
_PROPERTIES_LENGTH = struct.Struct(">h")
BATCH_HEAD = struct.Struct(">iIIii")
"""An entry of a batch up to its body: its size; magic and checksum, which are 0 and not read; its flag, its body's
size."""
BATCH_ENTRY_BYTES_MIN: Final = 22


def times_of(record: bytes | memoryview) -> tuple[int, int]:
    """Return when a whole record was born, and when it was stored, ms since 1970."""
    head = HEAD.unpack_from(record)
    place = HEAD.size + (HOST_V6 if head[7] & _BORN_V6 else HOST_V4)
    return head[8], _STORE_TIME.unpack_from(record, place)[0]


def encode_record(
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    flag: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    body: Any,
    properties: bytes,
) -> bytes:
    """Encode one record as the log holds it.

    Hosts are 8 bytes (IPv4) or 20 (IPv6); their bits in `sys_flag` are set to fit. Raises LocalProtocolError: a topic,
    property text or number that the format has no room for.
    """
    # The bits are set whatever the flags say: readers cut the record by them, and they must fit the bytes.
    sys_flag = host_flags(sys_flag, born_host, store_host)
    if not 1 <= len(topic) <= TOPIC_BYTES_MAX:
        raise LocalProtocolError(f"the topic {topic!r} has {len(topic)} bytes, allowed are 1 to {TOPIC_BYTES_MAX}")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"{len(properties)} bytes of properties, allowed are {PROPERTIES_BYTES_MAX}")
    size = record_bytes(sys_flag, len(body), len(topic), len(properties))
    try:
        head = HEAD.pack(
            size, MAGIC, crc31(body), queue_id, flag, queue_offset, log_offset, sys_flag, born_ms
        ) + b"".join(
            (born_host, _STORE_TIME.pack(store_ms), store_host,
             _BEFORE_BODY.pack(reconsume_times, prepared_offset, len(body)))
        )  # fmt: skip
    except struct.error as error:
        raise LocalProtocolError(f"a number of the record for {topic!r} does not fit its field: {error}") from None
    return b"".join(
        (head, body, len(topic).to_bytes(1, "big"), topic, _PROPERTIES_LENGTH.pack(len(properties)), properties)
    )


def host_flags(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """Return `sys_flag` with its two host bits as the hosts' sizes want them. Raises LocalProtocolError for another
    size."""
    for host, bit in ((born_host, _BORN_V6), (store_host, _STORE_V6)):
        if len(host) not in (HOST_V4, HOST_V6):
            raise LocalProtocolError(f"the host {host.hex()} is neither 8 nor 20 bytes long")
        sys_flag = sys_flag | bit if len(host) == HOST_V6 else sys_flag & ~bit
    return sys_flag


def record_bytes(sys_flag: int, body: int, topic: int, properties: int) -> int:
    """Return TOTALSIZE of a record with parts of these sizes."""
    size = RECORD_BYTES_MIN + body + topic + properties
    if sys_flag & _BORN_V6:
        size += HOST_V6 - HOST_V4
    if sys_flag & _STORE_V6:
        size += HOST_V6 - HOST_V4
    return size


class Broken(ValueError):
    """Bytes are no record. Internal to the codecs: callers see RemoteProtocolError or an END_* value."""


Fields = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int, int, bytes, int, int]
"""(size, crc, queue id, flag, queue offset, log offset, sys flag, born ms, prepared offset, born host, store ms, store
host, reconsume times, body start, body end, topic start, topic, properties start, record end)."""


def split(view: memoryview, start: int, end: int, check_crc: bool = True) -> Fields:
    """Split the record at the start of `view[start:end]` into its fields. Does not compare its offsets with its place.

    Raises Broken.
    """
    if end - start < RECORD_BYTES_MIN:
        raise Broken(f"{end - start} bytes are less than the smallest record")
    size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms = HEAD.unpack_from(view, start)
    # The magic is checked first: with any other one none of the fields behind it means anything.
    if magic != MAGIC:
        raise Broken(f"magic {magic:08x}")
    born = HOST_V6 if sys_flag & _BORN_V6 else HOST_V4
    store = HOST_V6 if sys_flag & _STORE_V6 else HOST_V4
    if not RECORD_BYTES_MIN - 2 * HOST_V4 + born + store <= size <= end - start:
        raise Broken(f"size {size} with {end - start} bytes left")
    stop = start + size
    place = start + 48 + born
    (store_ms,) = _STORE_TIME.unpack_from(view, place)
    reconsume_times, prepared_offset, body_bytes = _BEFORE_BODY.unpack_from(view, place + 8 + store)
    body_start = place + 24 + store
    body_end = body_start + body_bytes
    # At least a topic's length and the properties' length must follow.
    if body_bytes < 0 or body_end + 3 > stop:
        raise Broken(f"body of {body_bytes} bytes in a record of {size}")
    topic_start = body_end + 1
    properties_start = topic_start + view[body_end] + 2
    if view[body_end] > TOPIC_BYTES_MAX or properties_start > stop:
        raise Broken(f"topic of {view[body_end]} bytes in a record of {size}")
    (properties_bytes,) = _PROPERTIES_LENGTH.unpack_from(view, properties_start - 2)
    if properties_start + properties_bytes != stop or properties_bytes < 0:
        raise Broken(f"properties of {properties_bytes} bytes in a record of {size}")
    # The checksum is checked last, since it reads all of the body.
    if check_crc and crc31(view[body_start:body_end]) != crc & 0x7FFFFFFF:
        raise Broken(f"the body does not fit its checksum {crc:08x}")
    return (
        size, crc, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms, prepared_offset,
        bytes(view[start + 48 : place]), store_ms, bytes(view[place + 8 : place + 8 + store]), reconsume_times,
        body_start, body_end, topic_start, bytes(view[topic_start : properties_start - 2]), properties_start, stop,
    )  # fmt: skip


def decode_record(data: Any, start: int = 0) -> StoredMessage:
    """Decode the record at `start` of `data` (any contiguous buffer) and verify its checksum. A compressed body stays
    so.

    Raises RemoteProtocolError: these bytes are no record.
    """
    view = memoryview(data).cast("B")
    try:
        (
            _, _, queue_id, flag, queue_offset, log_offset, sys_flag, born_ms, prepared_offset, born_host, store_ms,
            store_host, reconsume_times, body_start, body_end, _, topic, properties_start, stop,
        ) = split(view, start, len(view))  # fmt: skip
    except Broken as error:
        raise RemoteProtocolError(f"no record at byte {start}: {error}") from None
    return StoredMessage(
        topic=topic.decode("utf-8", "replace"), body=bytes(view[body_start:body_end]),
        queue_id=queue_id, queue_offset=queue_offset, log_offset=log_offset, flag=flag, sys_flag=sys_flag,
        born_ms=born_ms, store_ms=store_ms, reconsume_times=reconsume_times, prepared_offset=prepared_offset,
        born_host_raw=born_host, store_host_raw=store_host, properties_raw=bytes(view[properties_start:stop]),
    )  # fmt: skip


def encode_batch(entries: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Encode the body of a batch request. An entry is (flag, body, property text). Raises LocalProtocolError."""
    parts: list[bytes] = []
    for flag, body, properties in entries:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(f"{len(properties)} bytes of properties, allowed are {PROPERTIES_BYTES_MAX}")
        size = BATCH_ENTRY_BYTES_MIN + len(body) + len(properties)
        # Magic and checksum as 0, as Java's client sends them: the broker computes its own.
        parts += BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body
        parts += _PROPERTIES_LENGTH.pack(len(properties)), properties
    return b"".join(parts)


def decode_batch(body: Any) -> list[tuple[int, bytes, bytes]]:
    """Decode the body of a batch request into entries (flag, body, property text). Raises BadRequest if it is
    malformed."""
    view = memoryview(body).cast("B")
    entries = [
        (flag, bytes(view[start:middle]), bytes(view[middle + 2 : stop]))
        for flag, start, middle, stop in batch_places(view)
    ]
    if not entries:
        raise BadRequest("the batch holds no message")
    return entries


def batch_places(data: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield (flag, body start, body end, entry end) of each entry of a batch; properties begin 2 bytes behind the body.

    Raises BadRequest at the first malformed entry.
    """
    start, end, number = 0, len(data), 0
    while start < end:
        flag, to_middle, size = batch_place(data, start, number)
        yield flag, start + BATCH_HEAD.size, start + to_middle, start + size
        start += size
        number += 1


def batch_place(data: bytes | memoryview, start: int, number: int) -> tuple[int, int, int]:
    """Return (flag, distance of the body's end, size) of the entry at `start`.

    Raises BadRequest if it is malformed; `number` names it in the text.
    """
    left = len(data) - start
    if left < BATCH_ENTRY_BYTES_MIN:
        raise BadRequest(f"batch entry {number} is cut off after {left} bytes")
    size, _, _, flag, body_bytes = BATCH_HEAD.unpack_from(data, start)
    if not (BATCH_ENTRY_BYTES_MIN <= size <= left and 0 <= body_bytes <= size - BATCH_ENTRY_BYTES_MIN):
        raise BadRequest(f"batch entry {number}: size {size}, body {body_bytes}, bytes left {left}")
    to_middle = BATCH_HEAD.size + body_bytes
    (properties_bytes,) = _PROPERTIES_LENGTH.unpack_from(data, start + to_middle)
    if BATCH_ENTRY_BYTES_MIN + body_bytes + properties_bytes != size:
        raise BadRequest(f"batch entry {number}: properties of {properties_bytes} bytes do not fit its size")
    return flag, to_middle, size


def tags_code(tag: str | None) -> int:
    """Return a consume-queue unit's tag code: the tag's Java hash, 0 without a tag."""
    return java_hash(tag.encode("utf-8", "replace")) if tag else 0


def copy_mark(log_offset: int) -> int:
    """Return PREPAREDTRANSACTIONOFFSET for a copy of the record at `log_offset`: negative, as no transaction's offset
    is.

    By it recovery after a crash sees in the log itself which records were copied already (docs/formats/extensions.md).
    """
    return -1 - log_offset


def copied_from(prepared_offset: int) -> int | None:
    """Return the LogOffset of the record that this one is a copy of; None if it is no copy of ours."""
    return -1 - prepared_offset if prepared_offset < 0 else None


def offset_id(store_host: bytes, log_offset: int) -> str:
    """Return the broker's id of a stored message: store host and log offset in upper-case hex, 32 characters (IPv4) or
    56."""
    return f"{store_host.hex()}{log_offset:016x}".upper()


def parse_offset_id(text: str) -> tuple[str, int, int]:
    """Return address, port and log offset of an offset id. Raises BadRequest if `text` is none."""
    try:
        raw = bytes.fromhex(text)
        address = str(ipaddress.ip_address(raw[:-12]))  # also refuses anything but 4 or 16 bytes
        return address, int.from_bytes(raw[-12:-8], "big"), int.from_bytes(raw[-8:], "big", signed=True)
    except ValueError as error:
        raise BadRequest(f"{text[:80]!r} is no offset id: {error}") from None


def java_hash(text: bytes) -> int:
    """Return Java's `String.hashCode` of UTF-8 bytes: over UTF-16 units, a signed 32-bit number.

    Bytes that are not UTF-8 count as U+FFFD, which is what Java decodes them to.
    """
    # ASCII, nearly all keys: each byte is one UTF-16 unit.
    units: bytes = text if text.isascii() else text.decode("utf-8", "replace").encode("utf-16-be")
    result = 0
    if units is text:
        for unit in units:
            result = (result * 31 + unit) & _MASK32
    else:
        for high, low in zip(units[::2], units[1::2], strict=True):
            result = (result * 31 + (high << 8 | low)) & _MASK32
    return result - (1 << 32) if result >> 31 else result


def index_hash(key: bytes) -> int:
    """Return the index file's hash of a key: abs(java_hash(key)), and 0 for -2^31, which has no abs in 32 bits."""
    value = abs(java_hash(key))
    return 0 if value >> 31 else value


def crc31(data: Any) -> int:
    """Return the CRC-32 (IEEE) without its top bit, as BODYCRC holds it. `data`: any contiguous buffer."""
    return int(_crc32(data)) & 0x7FFFFFFF
