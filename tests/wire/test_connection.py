"""The sans-io connection and the frame layout: one table of streams, fed whole, byte by byte and with trailing bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.errors import RemoteProtocolError
from metaq.wire.command import FRAME_BYTES_MAX, Command, SerializeType, encode, frame_bytes
from metaq.wire.connection import SMALL_BYTES, Connection

COMMANDS = [
    Command(310, 1, ext={"a": "PG"}, body=b"hello"),
    Command(0, 1, 1, ext={"queueId": "1"}),
    Command(105, 2, ext={"topic": "T"}, serialize=SerializeType.BINARY),
    Command(11, 3, 2, body=bytes(100_000)),
]


def read_all(connection: Connection) -> list[Command]:
    found = []
    while (command := connection.next_command()) is not None:
        found.append(command)
    return found


def stream() -> bytes:
    return b"".join(map(encode, COMMANDS))


def test_stream_fed_whole_gives_all_commands() -> None:
    """Many frames in one piece."""
    reader = Connection()
    reader.receive_data(stream())
    assert read_all(reader) == COMMANDS
    assert reader.unread_bytes == 0


def test_stream_fed_byte_by_byte_gives_all_commands() -> None:
    """No boundary inside a frame matters."""
    reader, found = Connection(), []
    small = b"".join(map(encode, COMMANDS[:3]))
    for position in range(len(small)):
        reader.receive_data(small[position : position + 1])
        found += read_all(reader)
    assert found == COMMANDS[:3]


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=30))
def test_stream_cut_anywhere_gives_all_commands(sizes: list[int]) -> None:
    """Any cut of the stream gives the same commands."""
    data, reader, found, position = stream(), Connection(), [], 0
    for size in [*sizes, len(stream())]:
        reader.receive_data(memoryview(data)[position : position + size])
        position += size
        found += read_all(reader)
    assert found == COMMANDS


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=30))
def test_a_socket_that_fills_the_room_gives_all_commands(sizes: list[int]) -> None:
    """However much of the room it fills at a time, and without a copy of a large body; no more is called missing than comes."""
    data, reader, found, position = stream() * 3, Connection(), [], 0
    while position < len(data):
        room = reader.room()
        assert len(room)
        assert 1 <= reader.missing_bytes <= len(data) - position
        count = min(len(room), sizes[position % len(sizes)], len(data) - position)
        room[:count] = data[position : position + count]
        reader.received(count)
        position += count
        found += read_all(reader)
    assert found == COMMANDS * 3
    for command in found:
        assert isinstance(command.body, memoryview) == (len(command.body) > SMALL_BYTES)


def test_commands_that_were_read_leave_no_memory_behind() -> None:
    """What a reader keeps does not grow with what has come through it."""
    reader, data = Connection(), stream()
    for _ in range(100):
        reader.receive_data(data)
        assert len(read_all(reader)) == len(COMMANDS)
        assert len(reader.room()) <= 2 * len(data)


def test_trailing_bytes_wait_for_more() -> None:
    """An unfinished frame behind whole ones is kept and completed later."""
    data, reader = stream(), Connection()
    reader.receive_data(data + data[:7])
    assert read_all(reader) == COMMANDS
    assert reader.unread_bytes == 7
    reader.receive_data(data[7:])
    assert read_all(reader) == COMMANDS


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff\xff\xff\xff", "the limit is"),
        ((FRAME_BYTES_MAX - 3).to_bytes(4, "big"), "the limit is"),
        (b"\x00\x00\x00\x03", "no room for its header length"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x05", "a header of 5 bytes does not fit a frame of 8"),
        (b"\x00\x00\x00\x08\x02\x00\x00\x00", "serialize type 2"),
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"\x00\x00\x00\x09\x00\x00\x00\x05hello", "not JSON"),
    ],
)
def test_broken_stream_stays_broken(data: bytes, why: str) -> None:
    """The first bytes that can tell are enough; nothing that follows is read."""
    reader = Connection()
    reader.receive_data(data)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=why):
            reader.next_command()
        reader.receive_data(stream())
    assert reader.unread_bytes == len(data)


def test_commands_before_garbage_are_given() -> None:
    """What was whole before the broken frame is not lost."""
    reader = Connection()
    reader.receive_data(stream() + b"\xff" * 100)
    found = [reader.next_command() for _ in COMMANDS]
    assert found == COMMANDS
    with pytest.raises(RemoteProtocolError):
        reader.next_command()


def test_lying_length_is_refused_before_its_body_arrives() -> None:
    """A limit of our own below 16 MiB holds too; exactly the limit passes."""
    assert frame_bytes((96).to_bytes(4, "big"), 0, 4, 100) == 100
    with pytest.raises(RemoteProtocolError, match="a frame of 101 bytes, the limit is 100"):
        frame_bytes((97).to_bytes(4, "big"), 0, 4, 100)


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_arbitrary_bytes_raise_nothing_else(pieces: list[bytes]) -> None:
    """Garbage is commands, waiting, or RemoteProtocolError."""
    reader = Connection(1 << 16)
    with contextlib.suppress(RemoteProtocolError):
        for piece in pieces:
            reader.receive_data(piece)
            read_all(reader)
