"""Reading many connections in one pass, and answering them in one.

A connection whose requests come one at a time costs an event for each: a call of the loop, a dozen of ours, a write.
With many such connections ready, only the bytes differ from event to event. So a connection may join a `Sweep`: the
loop watches one descriptor for all of them, and one native pass reads each that is ready. The sweep's handler marks how
much of each part it has used and hands in the answers of all; bytes that are left go the usual way, through
`SweptStream.take`.

A sweep needs epoll and the compiled module (`METAQ_HOT=0` goes without, see `metaq.compiled`). A part is a row of six
32-bit numbers:

    slot, life      the connection; `life` tells apart those that had the slot one after the other
    start, end      its bytes in `Sweep.buffer`; none at a connection's end or fault: its member is to leave
    used            up to where the handler has taken them; `read` sets it to `start`
    answered        where its answers end among those of all parts; `read` sets it to 0
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from metaq.compiled import compiled

if TYPE_CHECKING:
    from metaq.net import _sweep

log = logging.getLogger("metaq.net")

PARTS_MAX: Final = 64
"""Most connections read in one pass."""
PART_BYTES: Final = 16 * 1024
"""Largest read of one connection in a pass: one with more at once does not send small requests one by one."""
COLUMNS: Final = 6
ANSWERED: Final = 5
PASSES_MAX: Final = 32
"""Most passes per turn of the loop: its other events wait meanwhile, a millisecond or two at most."""
_AWAKE_MICROS: Final = 50
"""Busy poll for the next request, µs: a producer on the same machine needs 10 to 30."""
_CREDIT_MAX, _CREDIT_LOST, _RESTS = 8, 3, 64
"""Credit of busy polling: a wait that was worth it earns 1, one in vain costs `_CREDIT_LOST`; without credit, `_RESTS`
chances are skipped."""


def awake_micros(wanted: int | None) -> int:
    """Return how long to poll busily, µs. None is as much as is good here: nothing on a single core, where the producer could not
    run meanwhile."""
    if wanted is None:
        return _AWAKE_MICROS if len(os.sched_getaffinity(0)) > 1 else 0
    return wanted


class SweptStream(Protocol):
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

    def leave(self) -> None:
        """Read by itself again."""
        ...


class Watch(Protocol):
    """What reads a connection in the place of its transport, once `Peer.join` has given it the connection: a `Sweep`, or threads."""

    def add(self, fd: int, member: SweptStream, sender: object) -> int:
        """Begin. Returns the connection's slot. Raises OSError."""
        ...

    def remove(self, slot: int) -> None:
        """End."""
        ...

    def was_read(self, slot: int) -> bool:
        """Return whether something came since this was asked last."""
        ...

    def set_behind(self, slot: int, behind: bool) -> None:
        """Say whether earlier bytes may wait to be written: then nothing is written past them."""
        ...

    def send(self, slot: int, data: bytes) -> int:
        """Write past the transport. Returns how many bytes went out."""
        ...


_compiled, _ = compiled("metaq.net._sweep")
_NATIVE: type[_sweep.Sweep] | None = _compiled.Sweep if _compiled else None
send_now: Callable[[int, bytes], int] | None = _compiled.send_now if _compiled else None
"""`send_now(descriptor, data)`: send what a socket takes without waiting, and return how many bytes that was. None
where there are no sweeps."""
receive_awake: Callable[[int, memoryview, int], int] | None = _compiled.receive_awake if _compiled else None
"""`receive_awake(descriptor, room, nanoseconds)`: poll busily for the next bytes, and return how many have come. None where there
are no sweeps."""


def receive_buffer(size: int) -> memoryview:
    """Return zeroed memory to receive into. The compiled module's is resident only as far as it has been written to."""
    return memoryview(_compiled.ReceiveBuffer(size) if _compiled else bytearray(size))


def available() -> bool:
    """Return whether there are sweeps here: epoll, and the compiled module."""
    return _NATIVE is not None


class Vigil:
    """Decides whether to poll busily for the next request of a lone connection.

    Where requests follow each other within microseconds, going to sleep and being woken costs more than everything
    else. Busy polling costs a core meanwhile: so it goes on only while most of the last waits were not in vain.
    """

    def __init__(self) -> None:
        self._credit = _CREDIT_MAX
        self._rest = 0

    def worth_it(self) -> bool:
        """Return whether to wait now; report the outcome to `count`."""
        if self._credit > 0:
            return True
        self._rest -= 1
        return self._rest < 0

    def count(self, *, came: bool) -> None:
        """Count the outcome of a wait."""
        if came:
            self._credit = min(_CREDIT_MAX, self._credit + 1)
        else:
            self._credit = max(0, self._credit - _CREDIT_LOST)
            self._rest = _RESTS


class Sweep:
    """Connections of one event loop that are read in one pass.

    Args:
        handle: called on the loop, with this sweep, when some connections have bytes; calls `read` first.
        awake_us: longest busy poll for the next request where one connection alone is busy, microseconds; 0: none.
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

    def add(self, fd: int, member: SweptStream, sender: object) -> int:
        """Add a connection whose transport does not read any more. Returns its slot. Raises OSError."""
        slot = self._native.add(fd, member, sender)
        if not self._count:
            # The loop watches the sweep only while it has members: an empty one would be one more descriptor in each of
            # its waits.
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._native.fd, self._turn)
        self._count += 1
        return slot

    def remove(self, slot: int) -> None:
        """Stop reading a connection. Raises LookupError."""
        self._native.remove(slot)
        self._count -= 1
        if not self._count and self._loop is not None:
            self._loop.remove_reader(self._native.fd)
            self._loop = None

    def _turn(self) -> None:
        """Make a pass, and further ones while a lone connection goes on at once; then other events have their turn."""
        self._handle(self)
        if not self._awake_ns:
            return
        for _ in range(PASSES_MAX):
            if self._parts_read != 1 or not self._count or not self._vigil.worth_it():
                return
            self._wait_ns = self._awake_ns
            try:
                self._handle(self)
            finally:
                self._wait_ns = 0
            # Counted per wait: a core is spent on it, which only steady traffic repays.
            self._vigil.count(came=self._parts_read > 0)

    def read(self) -> memoryview:
        """Read the connections that are ready, `PARTS_MAX` at most. Returns their parts, `COLUMNS` numbers each;
        perhaps none."""
        self._parts_read = self._native.read(self._wait_ns)
        return self._native.parts[: COLUMNS * self._parts_read]

    def write(self, answers: bytes, parts: memoryview, members: list[SweptStream | None] | None = None) -> None:
        """Write the answers of parts, each to its connection.

        Answers that had to wait need `members`, the result of `answered` at the time: a connection may have left the
        sweep since, and its slot may be another's.
        """
        for member, start, end in self._native.write(answers, parts, members):
            member.answer(answers[start:end])

    def answered(self, parts: memoryview) -> list[SweptStream | None]:
        """Return the members that the answers of these parts are for, in their order; None for one that has left."""
        return self._native.answered(parts)

    def left(self, parts: memoryview) -> list[tuple[SweptStream, memoryview]]:
        """Return the members of parts that were not used up, with the bytes left; none at a connection's end."""
        return [(member, self.buffer[used:end]) for member, used, end in self._native.left(parts)]
