"""Reading many connections at once, and answering them at once.

A connection whose requests come one at a time costs an event each: a call of the loop, a dozen of ours, a write. Where
many such connections are ready, their events differ in nothing but the bytes. So a connection may join a `Sweep`: the loop
watches one descriptor for all of them, and one native pass reads each that is ready. What becomes of the parts is for
whoever handles the sweep: it marks how much of each it has used, hands in the answers of all, and what is left
goes the usual way, through `Member.take`.

A sweep needs epoll and the compiled module (`METAQ_HOT=0` goes without, see `metaq.compiled`). A part is a row of six 32-bit numbers:

    slot, life      whose it is; `life` tells apart those that had the slot one after the other
    start, end      its bytes in `Sweep.buffer`; none at a connection's end or fault: its member is to leave
    used            up to where the handler has taken them; `read` sets it to `start`
    answered        where its answers end among those of all parts; `read` sets it to 0
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from metaq.compiled import compiled

if TYPE_CHECKING:
    from metaq.net import _sweep

log = logging.getLogger("metaq.net")

PARTS_MAX: Final = 64
PART_BYTES: Final = 16 * 1024
"""A connection with more to read at once is no longer one that sends small requests one by one."""
COLUMNS: Final = 6
ANSWERED: Final = 5
_PASSES_MAX: Final = 32
"""Of a turn of the loop, whose other events wait meanwhile: a millisecond or two at most."""
_CREDIT_MAX, _CREDIT_LOST, _RESTS = 8, 3, 64
"""So many waits in vain, among others, end it; and it is tried again after so many chances."""


class Member(Protocol):
    """A connection in a sweep."""

    def take(self, data: memoryview) -> None:
        """Have the session handle bytes that the sweep read; they are valid during the call only."""
        ...

    def answer(self, data: bytes) -> None:
        """Write answers that could not go out at once, or that waited until it had left the sweep."""
        ...

    def abort(self, why: str) -> None:
        """Close at once."""
        ...


_compiled, _ = compiled("metaq.net._sweep")
_NATIVE: type[_sweep.Sweep] | None = _compiled.Sweep if _compiled else None
send_now: Callable[[int, bytes], int] | None = _compiled.send_now if _compiled else None
"""`send_now(descriptor, data)`: send on a socket what it takes without waiting, and return how many bytes that was. None where
there are no sweeps."""


def receive_buffer(size: int) -> memoryview:
    """Zeroed memory to receive into. With the compiled module it is resident only as far as it has been written to."""
    return memoryview(_compiled.ReceiveBuffer(size) if _compiled else bytearray(size))


def available() -> bool:
    """Whether there are sweeps on this machine."""
    return _NATIVE is not None


class Vigil:
    """Whether to stay awake for the next request of a lone connection, as long as that pays.

    A request that is answered and followed by the next within microseconds costs more for going to sleep and being woken
    than for all else. To wait awake costs a core meanwhile: so only where the last waits were mostly not in vain.
    """

    def __init__(self) -> None:
        self._credit = _CREDIT_MAX
        self._rest = 0

    def worth_it(self) -> bool:
        """Whether to wait now; tell the outcome by `count`."""
        if self._credit > 0:
            return True
        self._rest -= 1
        return self._rest < 0

    def count(self, *, came: bool) -> None:
        """Whether something came while it was waited for."""
        if came:
            self._credit = min(_CREDIT_MAX, self._credit + 1)
        else:
            self._credit = max(0, self._credit - _CREDIT_LOST)
            self._rest = _RESTS


class Sweep:
    """Connections of one event loop that are read in one pass.

    Args: handle: called on the loop when some of them have something, with this; calls `read` first. awake_us: how long to
        wait awake, microseconds, for what comes next where one connection alone is busy; 0: never.
    """

    def __init__(self, handle: Callable[[Sweep], None], awake_us: int = 0) -> None:
        assert _NATIVE is not None, "ask available() first"
        self._handle = handle
        self._awake_ns, self._vigil = awake_us * 1000, Vigil()
        self._parts_read = self._wait_ns = 0
        self._native = native = _NATIVE()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self.buffer, self.senders = native.buffer, native.senders
        self.was_read, self.set_behind, self.send = native.was_read, native.set_behind, native.send

    def __len__(self) -> int:
        return self._count

    def add(self, fd: int, member: Member, sender: object) -> int:
        """Take a connection in, whose transport does not read any more. Returns its slot. Raises OSError."""
        slot = self._native.add(fd, member, sender)
        if not self._count:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._native.fd, self._turn)
        self._count += 1
        return slot

    def remove(self, slot: int) -> None:
        """Read it no more. Raises LookupError."""
        self._native.remove(slot)
        self._count -= 1
        if not self._count and self._loop is not None:
            self._loop.remove_reader(self._native.fd)
            self._loop = None

    def _turn(self) -> None:
        """A pass, and more of them while a lone connection goes on at once; then other events have their turn."""
        self._handle(self)
        if not self._awake_ns:
            return
        for _ in range(_PASSES_MAX):
            if self._parts_read != 1 or not self._count or not self._vigil.worth_it():
                return
            self._wait_ns = self._awake_ns
            try:
                self._handle(self)
            finally:
                self._wait_ns = 0
            self._vigil.count(came=self._parts_read > 0)

    def read(self) -> memoryview:
        """Read those that have something, `PARTS_MAX` at most. Returns their parts, `COLUMNS` numbers each; perhaps none."""
        self._parts_read = self._native.read(self._wait_ns)
        return self._native.parts[: COLUMNS * self._parts_read]

    def write(self, answers: bytes, parts: memoryview, members: list[Member | None] | None = None) -> None:
        """Write the answers of parts, each to its connection.

        Answers that had to wait need `members`, what `answered` said before: a connection may have left the sweep since, and
        its slot may be another's.
        """
        for member, start, end in self._native.write(answers, parts, members):
            member.answer(answers[start:end])

    def answered(self, parts: memoryview) -> list[Member | None]:
        """The members that the answers of these parts are for, in their order; None: one that has left."""
        return self._native.answered(parts)

    def left(self, parts: memoryview) -> list[tuple[Member, memoryview]]:
        """The members of parts that were not used up, and their bytes; no bytes at a connection's end."""
        return [(member, self.buffer[used:end]) for member, used, end in self._native.left(parts)]
