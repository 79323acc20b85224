"""Remoting frames, headers in both forms and both directions, batches, properties, records, compression, the replication stream."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
from fuzz.remoting_frames import damaged as damaged_command
from fuzz.target import parser
from tests.wire.hot.support import (
    ENDING_EXT,
    FALLBACK,
    GOLDEN_RECORD,
    GOLDEN_SEND,
    LONG_NAMES,
    NATIVE,
    PULL_EXT,
    SEND_EXT,
    TEXT,
    frame,
    send,
)

from metaq.errors import BadRequest, ConfigError, LocalProtocolError, RemoteProtocolError
from metaq.model import StoredMessage, SysFlag, properties
from metaq.model.acl.secret import Secret
from metaq.model.message import COMPRESSION_LZ4, COMPRESSION_ZSTD, host_bytes
from metaq.wire import compression, frame_size, ha, headers, record, signing
from metaq.wire.command import Command, SerializeType, decode, encode
from metaq.wire.connection import Connection

BOTH = tuple(module for module in (FALLBACK, NATIVE) if module is not None)
BATCH = record.encode_batch([(0, b"one", b"UNIQ_KEY\x01a"), (1, b"two", b"TAGS\x01b\x02KEYS\x01k")])
LIMIT = 1 << 20
WORDS = tuple(
    name.encode()
    for name in (
        *SEND_EXT,
        *LONG_NAMES.values(),
        *PULL_EXT,
        *ENDING_EXT,
        "extFields",
        "code",
        "flag",
        "opaque",
        "language",
        "remark",
    )
)


def the_same(outcomes: list[Any]) -> Any:
    """What fallback and native say alike."""
    assert all(one == outcomes[0] for one in outcomes), f"fallback and native differ: {difference(*outcomes)}"
    return outcomes[0]


def difference(one: Any, other: Any) -> str:
    """The first place at which two values differ."""
    if type(one) is type(other) and isinstance(one, list | tuple) and len(one) == len(other):
        return next(difference(*pair) for pair in zip(one, other, strict=True) if pair[0] != pair[1])
    return f"{one!r:.600} and {other!r:.600}"


def outcome(call: Any, *errors: type[Exception]) -> Any:
    """What a call returns, or the kind of its error."""
    try:
        return call()
    except errors as error:
        return type(error)


# -- frames


def commands(data: bytes, step: int) -> tuple[list[Command], bool]:
    """What a client's connection reads of a stream that comes in pieces; whether it broke."""
    connection, found = Connection(LIMIT), []
    for start in range(0, len(data), step):
        connection.receive_data(data[start : start + step])
        try:
            found += iter(connection.next_command, None)
        except RemoteProtocolError:
            return found, True
    for one in found:
        one.body = bytes(one.body)
    return found, False


def frames(data: bytes) -> None:
    """A stream, whole and in pieces, at a client; and at both readers of a server."""
    whole, in_pieces = commands(data, max(1, len(data))), commands(data, 61)
    assert in_pieces[1] == whole[1]
    assert [one.code for one in in_pieces[0]] == [one.code for one in whole[0]]
    the_same([rows(hot, data) for hot in BOTH])


def rows(hot: Any, data: bytes) -> Any:
    table = hot.FrameTable(LIMIT, 64)
    used = table.scan(data, 0, len(data))
    found = [
        (
            table.kind(row),
            table.code(row),
            table.opaque(row),
            table.flag(row),
            table.binary(row),
            bytes(table.frame(row)),
        )
        for row in range(len(table))
    ]
    more = [about(hot, table, row) for row in range(len(table))]
    return used, bool(table.error), table.needed, found, more


def about(hot: Any, table: Any, row: int) -> Any:
    kind = table.kind(row)
    if kind == hot.KIND_PULL:
        return table.pull(row)
    if kind in (hot.KIND_SEND, hot.KIND_BATCH):
        return table.group(row), table.topic(row), table.default_topic(row), table.queue_id(row), table.body_bytes(row)
    return None


def stream(chance: random.Random, data: bytes) -> bytes:
    """The commands of a stream, with other values in them, and a frame that is damaged."""
    found = commands(data, max(1, len(data)))[0] or [Command(310, ext=dict(SEND_EXT), body=b"x")]
    made = [encode(one) for one in found]
    place = chance.randrange(len(found))
    made[place] = damaged_command(chance, found[place])
    if chance.random() < 0.3:
        made.insert(chance.randrange(len(made) + 1), chance.choice(made))
    return b"".join(made)


def some_frames() -> list[bytes]:
    return [
        frame(GOLDEN_SEND, b"hello"), send(), send(binary=True), send(BATCH, code=320, m="true"), send(code=10, binary=True),
        *(encode(Command(code, 7, flag, ext=ext, body=body, serialize=form)) for form in SerializeType for code, flag, ext, body in (
            (11, 0, PULL_EXT, b""), (37, 2, ENDING_EXT, b""), (34, 0, {}, b'{"clientID":"c"}'), (0, 1, {"msgId": "x"}, b""),
            (36, 0, {"offset": "0", "group": "G", "delayLevel": "0"}, b""),
        )),
        b'\0\0\0\x50\0\0\0\x44{"code":11,"extFields":{"queueId":3,"x":true,"y":1.5},"language":1,"opaque":2}body',
        send()[:50], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]  # fmt: skip


# -- headers


def header(data: bytes) -> None:
    """A frame without its length, either form; what is read can be written, and is read again as it was."""
    command = decode(data)
    try:
        again = decode(encode(command)[4:])
    except LocalProtocolError:
        return
    if command.serialize is SerializeType.JSON:
        assert again == command
    else:
        assert (again.code, again.ext) == (command.code, command.ext)


HEADERS = [
    one
    for one in vars(headers).values()
    if isinstance(one, type) and issubclass(one, headers.Header) and one is not headers.Header
]


def ext(data: bytes) -> None:
    """Ext fields, as every typed header."""
    fields = msgspec.json.decode(data, type=dict[str, str])
    read = 0
    for one in HEADERS:
        try:
            made = one.from_ext(fields)
        except BadRequest:
            continue
        read += 1
        assert one.from_ext(made.to_ext()).to_ext() == made.to_ext()
    if not read:
        raise BadRequest("no header has such fields")


def some_ext() -> list[bytes]:
    named = [
        dict(SEND_EXT),
        {LONG_NAMES[key]: value for key, value in SEND_EXT.items() if key in LONG_NAMES},
        dict(PULL_EXT),
        dict(ENDING_EXT),
    ]
    for one in HEADERS:
        wanted = {
            item.wire_name: {int: "7", bool: "true", float: "1.5"}.get(item.kind, "T") for item in headers.items(one)
        }
        named.append(wanted)
    return [msgspec.json.encode(one) for one in named]


def signed(data: bytes) -> None:
    """A signature over fields and a body, in both dialects."""
    head, _, body = data.partition(b"\n")
    fields = msgspec.json.decode(head, type=dict[str, str])
    signing.verify(fields, body, Secret("12345678"))
    signing.content(fields, body)


# -- batches, properties, records


def batch(data: bytes) -> None:
    """A batch's entries; the same ones one by one; written, they are the same."""
    entries = record.decode_batch(data)
    assert len(list(record.batch_places(data))) == len(entries)
    assert record.decode_batch(record.encode_batch(entries)) == entries


def property_text(data: bytes) -> None:
    """Properties, as values and as columns."""
    pairs = properties.parse(data.decode("utf-8", "replace"))
    assert properties.parse(properties.join(pairs)) == pairs
    view = struct.pack("<i", len(data)) + (
        data.ljust(12, b"\0") if len(data) <= 12 else data[:4] + struct.pack("<ii", 0, 0)
    )
    the_same([outcome(lambda hot=hot: tuple(map(bytes, hot.property_pairs(data, view))), ValueError) for hot in BOTH])


HEAD_FIELDS = (
    "log_offset",
    "size",
    "topic",
    "queue_id",
    "queue_offset",
    "sys_flag",
    "store_ms",
    "prepared_offset",
    "tags",
    "delay_level",
    "unique_id",
    "keys",
)


def records(data: bytes) -> None:
    """Bytes of a log, as recovery, consumers, Spark and 1.x clients read them."""
    for check_crc in (True, False):
        _, stop, _ = the_same([scanned(hot, data, check_crc) for hot in BOTH])
        the_same([hot.record_run(data, 0, len(data), 0, 100, len(data), check_crc) for hot in BOTH])
        for end in {stop, len(data)}:
            read = the_same([decoded(hot, data, end, check_crc) for hot in BOTH])
            the_same([columns(hot, data, end, check_crc) for hot in BOTH])
            for message in () if isinstance(read, type) else read:
                the_message(message)
    message = record.decode_record(data)
    frame_size.frame_bytes(data[: int.from_bytes(data[:4], "big")])
    the_message(message)


def scanned(hot: Any, data: bytes, check_crc: bool) -> Any:
    heads, stop, why = hot.scan_records(data, 0, len(data), 0, 100, check_crc)
    return [[getattr(head, field) for field in HEAD_FIELDS] for head in heads], stop, why


def decoded(hot: Any, data: bytes, end: int, check_crc: bool) -> Any:
    return outcome(lambda: hot.decode_records(data, 0, end, StoredMessage, "b", 0, 9, check_crc), RemoteProtocolError)


def columns(hot: Any, data: bytes, end: int, check_crc: bool) -> Any:
    return outcome(lambda: hot.decode_columns(data, 0, end, check_crc), RemoteProtocolError)


def the_message(message: StoredMessage) -> None:
    """All that is worked out of a record when somebody asks."""
    for name in (
        "tag",
        "keys",
        "properties",
        "message_id",
        "born_host",
        "store_host",
        "offset_id",
        "delay_level",
        "wait_store_ok",
        "backlog",
    ):
        getattr(message, name)
    repr(message)


def some_records() -> list[bytes]:
    host, v6 = host_bytes("127.0.0.1", 10911), bytes(15) + b"\x01" + bytes(4)

    def made(place: int, **more: Any) -> bytes:
        return record.encode_record(**{
            "topic": b"T", "queue_id": 1, "queue_offset": 5, "log_offset": place, "flag": 0, "sys_flag": 0, "born_ms": 1, "born_host": host,
            "store_ms": 2, "store_host": host, "reconsume_times": 0, "prepared_offset": 0, "body": b"body", "properties": TEXT.encode(), **more,
        })  # fmt: skip

    first = made(0)
    return [
        GOLDEN_RECORD, first, first + made(len(first), sys_flag=int(SysFlag.COMPRESSED), body=compression.compress(b"hello" * 20)),
        made(0, sys_flag=0x30, born_host=v6, store_host=v6), made(0, properties=b"DELAY\x013\x02REAL_TOPIC\x01T\x02"),
        first + struct.pack(">ii", 100, -875286124) + bytes(92), first + bytes(40), made(0, body=b"", properties=b""),
    ]  # fmt: skip


def mended_record(chance: random.Random, data: bytes) -> bytes:
    """A record changed behind its checksum: sizes and CRC are made right again."""
    try:
        fields = record.split(memoryview(data), 0, len(data), check_crc=False)
    except record.Broken:
        return data
    body, text = bytearray(data[fields[13] : fields[14]]), bytearray(data[fields[17] : fields[18]])
    for part in (body, text):
        if part and chance.random() < 0.7:
            at = chance.randrange(len(part))
            part[at : at + chance.randrange(3)] = chance.choice(
                (b"\x01", b"\x02", b"", b"\xff", b"DELAY\x011\x02", chance.randbytes(2))
            )
    if not fields[16]:  # we write none without a topic
        return data
    return record.encode_record(
        topic=fields[16], queue_id=fields[2], queue_offset=fields[4], log_offset=0, flag=fields[3], sys_flag=fields[6] ^ chance.choice((0, 0, 1, 0x100, 0x200)),
        born_ms=chance.choice((fields[7], -1, 1 << 62)), born_host=fields[9], store_ms=fields[10], store_host=fields[11], reconsume_times=fields[12],
        prepared_offset=fields[8], body=bytes(body), properties=bytes(text[:32767]),
    ) + data[fields[18] :]  # fmt: skip


def expanded(data: bytes) -> None:
    """A compressed body of every kind, within a limit."""
    refused = None
    for kind in (0, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0x100, 0x700):
        try:
            assert len(compression.decompress(data, SysFlag.COMPRESSED | kind, LIMIT)) <= LIMIT
        except BadRequest as error:
            refused = error
        frame_size.expanded_bytes(data, SysFlag.COMPRESSED | kind)
    if refused is not None:
        raise refused


def some_bodies() -> list[bytes]:
    kinds = (0, COMPRESSION_LZ4, COMPRESSION_ZSTD)
    return (
        [compression.compress(body, kind) for kind in kinds for body in (b"", b"hello", b"hello" * 400)]
        + [compression.compress(bytes(2 << 20), kind) for kind in (0, COMPRESSION_ZSTD)]
        + [compression.compress(b"x" * 50)[:-3]]
    )


def replication(data: bytes) -> None:
    """The stream of the master, and that of a slave."""
    view = memoryview(data)
    reported, taken = ha.decode_reports(view)
    assert 0 <= taken <= len(data)
    assert (reported is None) == (taken == 0)
    chunks, taken, needed, _ = ha.decode_chunks(view)
    assert sum(ha.HEAD.size + len(one.data) for one in chunks) == taken <= len(data)
    assert needed == 0 or needed > len(data) - taken


def some_chunks() -> list[bytes]:
    return [
        ha.encode_report(0),
        ha.encode_report(4711) * 3,
        ha.encode_head(0, 0),
        ha.encode_head(0, 5) + b"hello" + ha.encode_head(5, 0),
        ha.encode_head(0, 100) + b"part",
    ]


def hex_id(data: bytes) -> None:
    record.parse_offset_id(data.decode("utf-8", "replace"))


TARGETS = [
    parser("frames", frames, some_frames, words=WORDS, mutate=stream),
    parser(
        "header", header, lambda: [one[4:] for one in some_frames() if len(one) > 8], RemoteProtocolError, words=WORDS
    ),
    parser("ext", ext, some_ext, BadRequest, msgspec.DecodeError, UnicodeDecodeError, words=WORDS),
    parser(
        "signature",
        signed,
        lambda: [one + b"\nbody" for one in some_ext()[:4]] + [b'{"AccessKey":"RocketMQ","Signature":"x"}\n'],
        msgspec.DecodeError,
        UnicodeDecodeError,
    ),
    parser("batch", batch, lambda: [BATCH, record.encode_batch([(0, b"", b"")]), BATCH[:-1]], BadRequest),
    parser(
        "properties",
        property_text,
        lambda: [TEXT.encode(), (TEXT + "\x02").encode(), b"a\x01b\x02\x02c\x01\x01d"],
        words=(b"\x01", b"\x02", b"TAGS\x01", b"KEYS\x01"),
    ),
    parser("records", records, some_records, RemoteProtocolError, ValueError, mutate=mended_record),
    parser("compression", expanded, some_bodies, BadRequest, ConfigError),
    parser("ha-stream", replication, some_chunks, RemoteProtocolError),
    parser("offset-id", hex_id, lambda: [b"7F00000100002A9F0000000000000000", bytes(28).hex().encode()], BadRequest),
]
