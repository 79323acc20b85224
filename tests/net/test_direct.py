"""The stream on which a thread waits for its answer itself: time-outs by the clock, slow and broken peers, signals."""

from __future__ import annotations

import _thread
import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from metaq.clock import SYSTEM, FakeClock
from metaq.errors import ConnectionFailed, RequestTimeout
from metaq.net.direct import LOOK_SECONDS, DirectStream, dial_direct
from tests.support import PATIENCE

LARGE = 8 << 20
SHORT = 0.02
"""Seconds of a wait that is meant to be in vain."""


class Steps(FakeClock):
    """A clock that goes on by `step` whenever it is looked at."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step, self.looks = step, 0

    def monotonic(self) -> float:
        self.looks += 1
        self.advance(self.step)
        return super().monotonic()


def pair(clock: FakeClock | None = None) -> tuple[DirectStream, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return DirectStream(near, "far:1", clock or SYSTEM), far


@pytest.fixture
def ends() -> Iterator[tuple[DirectStream, socket.socket]]:
    stream, far = pair()
    with far:
        yield stream, far
    stream.close()


def ask(stream: DirectStream, frame: bytes, seconds: float = PATIENCE) -> bytes:
    return stream.exchange(frame, seconds, SYSTEM.monotonic() + seconds)


def answering(far: socket.socket, answer: bytes, size: int) -> tuple[threading.Thread, list[bytes]]:
    """The other side: reads so many bytes and answers."""
    got: list[bytes] = []

    def work() -> None:
        read = b""
        while len(read) < size:
            read += far.recv(1 << 16)
        got.append(read)
        far.sendall(answer)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, got


@pytest.mark.parametrize("seconds", [PATIENCE, LOOK_SECONDS / 2])
def test_what_comes_first_is_the_answer(ends: tuple[DirectStream, socket.socket], seconds: float) -> None:
    """Also with a time-out shorter than the usual look at the clock, and again and again."""
    stream, far = ends
    for number in range(3):
        thread, got = answering(far, b"answer %d" % number, 7)
        assert ask(stream, b"request", seconds) == b"answer %d" % number
        thread.join(PATIENCE)
        assert got == [b"request"]


def test_a_long_frame_goes_out_whole_to_a_peer_that_reads_slowly(ends: tuple[DirectStream, socket.socket]) -> None:
    """The kernel takes it piece by piece."""
    stream, far = ends
    # Not less: below a loopback segment some kernels hand on one window in 0.2 s, and the frame takes minutes.
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    frame = bytes(range(256)) * (LARGE // 256)
    thread, got = answering(far, b"done", LARGE)
    assert ask(stream, frame) == b"done"
    thread.join(PATIENCE)
    assert got == [frame]


@pytest.mark.parametrize(
    ("seconds", "step", "looks"), [(SHORT, SHORT / 4, 4), (SHORT, SHORT * 2, 1), (SHORT, SHORT / 2, 2)]
)
def test_a_wait_ends_when_the_clock_says_so(seconds: float, step: float, looks: int) -> None:
    """Not when a look is over: the clock is asked after each, and the last look is the one that finds the time over."""
    clock = Steps(step)
    stream, far = pair(clock)
    with far:
        with pytest.raises(RequestTimeout, match="far:1"):
            stream.exchange(b"request", seconds, seconds)
        assert clock.looks == looks
    stream.close()


def test_a_frame_that_nobody_reads_times_out(ends: tuple[DirectStream, socket.socket]) -> None:
    """Writing is part of the time."""
    stream, _ = ends
    with pytest.raises(RequestTimeout):
        ask(stream, bytes(4 * LARGE), SHORT)


def test_a_peer_that_closes_fails_the_exchange(ends: tuple[DirectStream, socket.socket]) -> None:
    """At once, and whether it has the request is unknown."""
    stream, far = ends
    thread = threading.Thread(target=lambda: (far.recv(100), far.close()), daemon=True)
    thread.start()
    with pytest.raises(ConnectionFailed, match="closed by the peer") as caught:
        ask(stream, b"request")
    assert caught.value.sent
    thread.join(PATIENCE)
    with pytest.raises(ConnectionFailed):
        ask(stream, bytes(LARGE))


def test_stale_is_a_stream_that_was_closed_or_spoken_to(ends: tuple[DirectStream, socket.socket]) -> None:
    """What was looked at stays to be read."""
    stream, far = ends
    assert not stream.stale
    far.sendall(b"x")
    while not stream.stale:
        pass
    assert stream.stale
    assert stream.receive(SYSTEM.monotonic() + PATIENCE) == b"x"
    assert not stream.stale
    far.close()
    while not stream.stale:
        pass


def test_cut_ends_the_wait_of_another_thread(ends: tuple[DirectStream, socket.socket]) -> None:
    """It fails as if the peer had closed."""
    stream, far = ends
    failed: list[BaseException] = []

    def work() -> None:
        try:
            ask(stream, b"request")
        except ConnectionFailed as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert far.recv(100) == b"request"
    stream.cut()
    thread.join(PATIENCE)
    assert failed


@pytest.mark.usefixtures("interruptible")
def test_a_signal_that_came_just_before_the_wait_is_served(ends: tuple[DirectStream, socket.socket]) -> None:
    """`interrupt_main` sets the flag of a signal and ends no system call: the next look finds it."""
    stream, far = ends
    thread = threading.Thread(target=lambda: (far.recv(100), _thread.interrupt_main()), daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ask(stream, b"request")
    thread.join(PATIENCE)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_stream_is_dialled_from_a_loop(host: str) -> None:
    """It blocks afterwards, and its loop is not needed any more."""
    try:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        pytest.skip(f"no {host} here: {error}")
    with listener:
        peer = (host, listener.getsockname()[1])
        stream = asyncio.run(dial_direct(peer, "name:1", PATIENCE, SYSTEM))
        far, _ = listener.accept()
        with far:
            thread, _ = answering(far, b"answer", 7)
            assert ask(stream, b"request") == b"answer"
            thread.join(PATIENCE)
        stream.close()
    with pytest.raises(ConnectionFailed, match="name:1"):
        asyncio.run(dial_direct(peer, "name:1", PATIENCE, SYSTEM))
