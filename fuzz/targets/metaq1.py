"""MetaQ 1.x: lines of the text protocol, frames of its data files, transaction keys."""

from __future__ import annotations

from typing import Any

from fuzz.target import parser
from tests.wire.metaq1.test_commands import GOLDEN

from metaq.errors import BadRequest, LocalProtocolError, RemoteProtocolError
from metaq.model.transactions.metaq1 import transaction_key
from metaq.wire.metaq1 import frame
from metaq.wire.metaq1.commands import Reader, encode

WORDS = (b"put ", b"get ", b"offset ", b"sync ", b"transaction ", b"stats ", b"version ", b"quit", b"result ", b"value ", b"\r\n", b" ", b"TX:s:1", b"XID:7:6731:6231:uqA", b" COMMIT_ONE_PHASE ", b"null")  # fmt: skip


def read(data: bytes, step: int) -> tuple[list[Any], bool]:
    reader, found, kept, start = Reader(1000), [], b"", 0
    for at in range(0, len(data), step):
        kept, start = kept[start:] + data[at : at + step], 0
        while True:
            before = start, reader.passing
            try:
                line, start = reader.next(kept, start)
            except RemoteProtocolError:
                return found, True
            if line is not None:
                found.append(line)
            elif (start, reader.passing) == before:
                break
    return found, False


def lines(data: bytes) -> None:
    """A stream of lines, whole and in pieces; what is read is written and read again."""
    whole = read(data, max(1, len(data)))
    assert read(data, 37) == whole
    for line in whole[0]:
        if not hasattr(line, "body_bytes"):
            try:
                written = encode(line)
            except LocalProtocolError:  # a word that we do not write
                continue
            assert read(written, len(written)) == ([line], False), written
    if whole[1]:
        raise RemoteProtocolError("the stream broke")


def data_file(data: bytes) -> None:
    """Frames, and their attributes."""
    for one in frame.frames(data):
        frame.split_attribute(one.flag, one.body)


def some_frames() -> list[bytes]:
    with_attribute = frame.frame(2, 1, frame.with_attribute("red", b"hello"))
    return [
        frame.frame(1, 0, b"hello"),
        frame.frame(1, 0, b"") + with_attribute,
        with_attribute[:-2],
        frame.frame(3, 1, b"no"),
    ]


def key(data: bytes) -> None:
    """A transaction's key; written, it is the same."""
    text = data.decode("utf-8", "replace")
    assert transaction_key(str(transaction_key(text))) == transaction_key(text)


KEYS = (b"TX:10.0.0.5-1373971200000-1:1", b"XID:7:6731:6231:uqA", b"XID:-1:::q", b"XID:7:673:6231:q", b"null")


TARGETS = [
    parser(
        "metaq1-lines",
        lines,
        lambda: [line for line, _ in GOLDEN] + [b"".join(line for line, _ in GOLDEN[:6])],
        RemoteProtocolError,
        words=WORDS,
    ),
    parser("metaq1-frames", data_file, some_frames, BadRequest),
    parser("metaq1-keys", key, lambda: KEYS, BadRequest, words=WORDS),
]
