"""The stream that blocks: large answers are taken in large pieces, slow ones all the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from metaq.errors import ConnectionFailed, RequestTimeout
from metaq.net.blocking import BlockingStream
from tests.support import PATIENCE

LARGE = 300_000
SHORT = 0.05
"""Seconds after which a wait is given up that is meant to be in vain."""


@pytest.fixture
def ends() -> Iterator[tuple[BlockingStream, socket.socket]]:
    """Ours, which waits with patience, and the other one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        with far, BlockingStream(near, "far:1", PATIENCE) as stream:
            yield stream, far


def test_a_large_answer_wakes_when_it_is_whole(ends: tuple[BlockingStream, socket.socket]) -> None:
    """What a small part of it would not do; and a short rest comes by itself."""
    stream, far = ends
    got: list[int] = []
    far.sendall(b"x" * 1000)
    reader = threading.Thread(target=lambda: got.append(stream.receive_into(bytearray(LARGE), LARGE)), daemon=True)
    reader.start()
    far.sendall(b"y" * (LARGE - 1000))
    reader.join(PATIENCE)
    assert got
    assert LARGE // 2 < got[0] <= LARGE  # most of it in one: under pressure the kernel wakes before the mark
    rest = LARGE - got[0]
    while rest:
        rest -= stream.receive_into(bytearray(rest), rest)


@pytest.mark.parametrize("awaited", [1, 1000, 64 * 1024])
def test_room_for_much_waits_for_no_more_than_is_sure_to_come(
    ends: tuple[BlockingStream, socket.socket], awaited: int
) -> None:
    """An answer of a few bytes is received at once, whatever came before it and whatever would still fit."""
    stream, far = ends
    far.sendall(b"x" * LARGE)
    rest = LARGE
    while rest:
        rest -= stream.receive_into(bytearray(rest), rest)
    far.sendall(b"short")
    assert stream.receive_into(bytearray(LARGE), awaited) == len(b"short")


def test_a_slow_line_brings_what_it_has(ends: tuple[BlockingStream, socket.socket]) -> None:
    """Too little for what was waited for is no silence; nothing at all is, and the time that holds is the one that was set."""
    stream, far = ends
    stream._socket.settimeout(SHORT)
    buffer = bytearray(LARGE)
    for size in (1, 20_000):
        far.sendall(b"x" * size)
        assert 0 < stream.receive_into(buffer, LARGE) <= size
    while True:
        try:
            stream.receive_into(buffer, LARGE)
        except RequestTimeout as fault:
            assert str(fault) == f"far:1 did nothing for {SHORT:g} s"
            break
    assert stream._socket.gettimeout() == SHORT


@pytest.mark.parametrize("before", [0, 10])
def test_the_end_is_told_at_once(ends: tuple[BlockingStream, socket.socket], before: int) -> None:
    """Also where more was waited for."""
    stream, far = ends
    far.sendall(b"x" * before)
    far.close()
    got = 0
    with pytest.raises(ConnectionFailed, match="closed the connection"):
        while True:
            got += stream.receive_into(bytearray(LARGE), LARGE)
    assert got == before
