"""A connection of an event loop that is lent to threads: one of them writes a request and reads its answer by itself.

Nothing has to be handed from a thread to the loop and back, which is most of the time that a request alone on its connection takes.
While it is lent, the transport does not read. Nobody's bytes are expected then, but those that answer the thread's request: the loop
watches for others (by an epoll of its own, which a thread can take the connection out of) and takes it back when some come, or when
it has something to write itself. So a connection is lent only while nothing is under way on it, and one that much is under way on
never is. A thread that meets anything but the one whole answer that it waits for, the end of the connection among it, gives the
connection back with the bytes that it has read, and the loop handles them.

Needs epoll (Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable

from metaq.net.sweep import SweptStream

LOOK_SECONDS = 1.0
"""Longest wait within one system call: the handler of a signal that came just before it runs only then."""
ROOM_BYTES = 4096
POSSIBLE = hasattr(select, "epoll")


class Lent:
    """One connection, from when it is lent (`Peer.join`) until the loop has it back.

    Args: take_rest: called in a thread with what the socket did not take of a request; the loop writes it before all else. Raises nothing.
    """

    def __init__(self, take_rest: Callable[[bytes], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._take_rest = take_rest
        self._mutex = threading.Lock()
        """Guards what follows, held for microseconds. Who holds the connection uses the socket without it."""
        self._holder = 0
        """Thread that has the connection; 0: none."""
        self._usable = False
        """A thread may take it."""
        self._gone = False
        """The stream has it back, or has ended."""
        self._member: SweptStream | None = None

    # -------------------------------------------------------------- in the loop, as the stream's `Watch`

    def add(self, fd: int, member: SweptStream, sender: object) -> int:  # noqa: ARG002  no handler asks who it is
        """Raises OSError."""
        self._member = member
        # A descriptor of its own: the transport may close its one, whose number would soon be another's, while a thread waits.
        self._socket = socket.socket(fileno=os.dup(fd))
        try:
            self._epoll = select.epoll()
        except OSError:
            self._socket.close()
            raise
        self._fd = self._socket.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._epoll.register(self._fd, select.EPOLLIN)
        self._loop.add_reader(self._epoll.fileno(), self.take_back)
        self._usable = True
        return 0

    def remove(self, slot: int) -> None:  # noqa: ARG002  there is one
        with self._mutex:
            self._usable, self._gone = False, True
            if self._holder:  # a thread waits there, which closes it
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            else:
                self._socket.close()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def was_read(self, slot: int) -> bool:  # noqa: ARG002
        return True

    def set_behind(self, slot: int, behind: bool) -> None:
        """Nothing is written past the transport by the loop."""

    def send(self, slot: int, data: bytes) -> int:  # noqa: ARG002
        return 0

    def take_back(self) -> None:
        """The loop has something to write, or bytes have come that no thread waits for: no thread takes it any more. One that has it
        gives it back when its answer is there, or other bytes."""
        with self._mutex:
            self._usable = False
            if self._holder or self._gone:
                return
        self._leave()

    def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.leave()

    def _back(self, data: bytes) -> None:
        member = self._member
        if member is not None and not self._gone:
            if data:
                member.take(memoryview(data))
            self._leave()

    # -------------------------------------------------------------- in a thread

    def begin(self, make: Callable[[], bytes]) -> bool:
        """Take the connection and write the request that `make` returns. Returns False if it cannot be had; nothing was made then.

        Pair with `end`, and if anything is raised, with `abandon`.
        """
        with self._mutex:
            if not self._usable or self._holder:
                return False
            self._holder = threading.get_ident()
            self._epoll.unregister(self._fd)
            request = make()
            try:
                self._write(request)
            except BaseException:  # the handler of a signal has raised: nobody knows how much of the request went out
                self._usable = False
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                raise
        return True

    def _write(self, request: bytes) -> None:
        try:
            sent = self._socket.send(request)
        except OSError:  # full, or broken, which the transport will meet
            sent = 0
        if sent < len(request):
            self._usable = False
            self._take_rest(request[sent:])

    def receive(self, seconds: float) -> bytes:
        """Return the next bytes; none: nothing came within `seconds`, at most `LOOK_SECONDS`. Raises EOFError: nothing will."""
        if not self._poll.poll(max(min(seconds, LOOK_SECONDS) * 1000, 0)):
            return b""
        try:
            data = self._socket.recv(ROOM_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return data

    def end(self, rest: bytes | None = None) -> None:
        """Give the connection back. `rest`: read, and for the loop; with it, and be it empty, the loop goes on with the connection."""
        with self._mutex:
            self._holder = 0
            if self._usable and rest is None:
                self._epoll.register(self._fd, select.EPOLLIN)
                return
            self._usable = False
            if self._gone:
                self._socket.close()
                return
        with contextlib.suppress(RuntimeError):  # the interpreter exits
            self._loop.call_soon_threadsafe(self._back, rest or b"")

    def abandon(self) -> None:
        """Give the connection back if this thread has it: the answer that is still to come is nobody's."""
        if self._holder == threading.get_ident():
            self.end(b"")
